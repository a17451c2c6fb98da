"""What users hand in, as the values that the layers below take."""

"""Arguments of users, checked and converted to the values that the layers below take."""

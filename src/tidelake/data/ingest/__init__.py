"""What comes from outside: tables of updates and of events, checked and made canonical."""

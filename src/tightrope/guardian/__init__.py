"""Watches the record of each step and says what to do. Pure rules over plain numbers; never touches a tensor."""

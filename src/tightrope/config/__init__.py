"""What a person writes: validated, frozen, explained. Never imports torch."""

"""The bench: models, methods and tasks crossed, every answer a row, resumed where it was stopped."""

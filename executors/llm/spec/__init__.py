"""The draft model beside the model: companion.py guesses the next tokens, loading.py loads it."""

"""The draft model beside the model: companion.py guesses the next tokens. `checkpoint/draft.py` loads it."""

"""What a model's own files say of how it is to be used: sampling defaults, pooling."""

"""Types and maths of the project; standard library only, no input or output."""

"""`lk play`: the keyboard in the browser."""

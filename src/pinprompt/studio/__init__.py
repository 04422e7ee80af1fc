"""`pinprompt studio`: a local web page to start, watch, compare and try runs."""

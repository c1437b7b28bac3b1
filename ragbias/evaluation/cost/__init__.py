"""What methods cost: time and memory beside plain attention, and beside what their arithmetic asks for."""

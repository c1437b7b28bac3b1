"""Tables, figures and the HTML file of one or several runs."""

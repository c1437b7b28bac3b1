"""Tables, figures and the HTML report of one or several runs."""

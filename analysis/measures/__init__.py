"""What one question alone measures, as tables from tables: its module in `questions` has the claims, tables and charts
made of them."""

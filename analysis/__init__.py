"""Everything that needs no GPU and no torch: captures to tables, tables to answers, answers to pages."""

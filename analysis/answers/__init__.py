"""Answer the class's five questions from a folder of captures that any script made, or from a recording."""

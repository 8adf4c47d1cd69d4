"""Two recordings or captures side by side: did it get faster, by how much, why, and is it real?"""

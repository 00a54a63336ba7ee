"""Does a finding hold on what it has not seen: fresh examples, random heads, other tasks?"""

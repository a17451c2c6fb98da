"""What nobody waits for: merging, collecting what nobody needs, removing what was dropped."""

"""What happens to a whole shard: holds, garbage, erasures, forks, copies, repairs, schemas, its end."""

"""What change events go into: a collection, or one that is to be made when its first events are checked."""

from typing import TypeAlias

from tidelake.cdc.core.unmade import Unmade
from tidelake.lake.api.collection import Collection

Target: TypeAlias = Collection | Unmade

"""The names of `ortmulti.text`, for type checkers. `__init__.py` lists the same."""

from ortmulti.text.fusing import fuse as fuse
from ortmulti.text.loading import load as load
from ortmulti.text.loading import load_options as load_options
from ortmulti.text.model import Label as Label
from ortmulti.text.model import TextModel as TextModel
from ortmulti.text.settings import Settings as Settings
from ortmulti.text.settings import is_export as is_export
from ortmulti.text.settings import read_settings as read_settings

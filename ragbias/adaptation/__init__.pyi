from .settings import AdaptSettings as AdaptSettings
from .sources import Question as Question
from .sources import read_questions as read_questions

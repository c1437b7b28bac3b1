from ragbias.adaptation.settings import AdaptSettings as AdaptSettings
from ragbias.data.questions import Question as Question
from ragbias.data.questions import read_questions as read_questions

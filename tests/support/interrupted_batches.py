"""A program that generates batches of one-token answers until it has received a number of Ctrl-C."""

import sys
import time

from langchain_ragbias import ChatRagBias

chat = ChatRagBias(model_id="tiny", max_tokens=1, method="none")
questions = [f"Question {index}?" for index in range(8)]
chat.batch(questions)


def answer_until_interrupted(number):
    try:
        print("ready", flush=True)
        while True:
            chat.batch(questions)
    except KeyboardInterrupt:
        print("interrupted", number, flush=True)


for number in range(int(sys.argv[1])):
    answer_until_interrupted(number)
time.sleep(0.1)  # work that was not cancelled would still run when the program ends

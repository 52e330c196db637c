"""Small talk: greeting, what the model is and cannot do, declining what it does not know."""

from __future__ import annotations

from collections.abc import Sequence

from tools.pocket.data.sample import Message, Sample, Stream, assistant, user
from tools.pocket.data.words import CITIES, COLOURS, NAMES, SHAPES

HELLO = "Hello! How can I help you?"
WHO = "I am a small model that can see, hear and read."
CAN = "I can describe images, read short texts, write down speech, watch clips and recall facts."
CANNOT = "I am small: I do not know facts about the world, and I cannot browse or learn."
UNKNOWN = "I do not know that. I only know what you show or tell me."
NO_MEDIA = "I do not see an image. Please send one."
NO_SOUND = "I do not hear anything. Please send a sound."

# Questions, and the answer that they share.
_TALK = (
    ("Hello! / Hello / Hi / Hi there! / Good morning! / Hey", HELLO),
    ("hello / hello / hi / hey", HELLO),
    ("Good evening. / Good evening!", "Good evening! How can I help you?"),
    (
        "How are you? / How are you today? / Are you well? / How is it going? / Are you okay? / "
        "How do you feel? / How are things? / I hope you are well.",
        "I am well, thank you.",
    ),
    (
        "Thank you! / Thanks. / Thank you very much! / Thanks a lot! / Thanks for that. / "
        "Thank you for the answer. / Thanks for your time. / Great, thank you.",
        "You are welcome.",
    ),
    ("Bye! / Goodbye. / See you later. / Good night! / See you soon! / Bye for now.", "Goodbye!"),
    (
        "Who are you? / What are you? / Tell me about you. / What is this model? / "
        "Tell me what you are. / Who is this? / What kind of model are you?",
        WHO,
    ),
    (
        "What can you do? / How can you help me? / What are you good at? / What do you do? / "
        "What can you do with an image? / What can you help with? / What can I ask you?",
        CAN,
    ),
    (
        "What can you not do? / What are your limits? / Do you know everything? / "
        "What do you not know? / What is hard for you? / Do you know a lot?",
        CANNOT,
    ),
    (
        "Are you a human? / Are you a person? / Are you real? / Are you a man or a woman? / "
        "Are you alive? / Am I talking to a human?",
        "No, I am a small model.",
    ),
    ("Can you see? / Can you see images? / Can you read?", "Yes, send me an image."),
    ("Can you hear? / Can you listen to a sound?", "Yes, send me a sound."),
    ("Can you watch videos? / Can you watch a clip?", "Yes, send me a short clip."),
    ("Can you speak? / Can you draw an image? / Can you sing?", "No, I can only write text."),
    ("Can you call tools? / Can you use a tool?", "Yes, if you tell me which tools there are."),
    ("What is in the image? / Describe the image. / What colour is the circle?", NO_MEDIA),
    ("What do you hear? / Write down what you hear. / How many beeps are there?", NO_SOUND),
    ("Please answer in one word. / Okay? / Yes or no?", "Okay."),
)
TALK: Sequence[tuple[Sequence[str], str]] = tuple((q.split(" / "), a) for q, a in _TALK)
SYSTEM = ("You are a helpful assistant.", "You are a friendly assistant.", "Answer briefly.")
_FACTS = (
    *("Who is the president of {}?", "How many people live in {}?", "When was {} founded?"),
    *("What is the weather in {}?", "Who won the game in {}?", "How far is it to {}?"),
    *("What is the news from {}?", "What does it cost to fly to {}?", "Where is {}?"),
)
_OTHER = (
    *("Who wrote this book?", "What is the meaning of life?", "What will happen tomorrow?"),
    *("Who am I?", "What did I eat today?", "What is the capital of the moon?"),
    *("Explain how a train works.", "What is two to the power of nine?", "Who is the king?"),
)


def chat(stream: Stream) -> Sample:
    """One to three turns of small talk. Skill "chat"."""
    rng = stream.rng
    messages: list[Message] = []
    if rng.random() < 0.2:
        messages.append({"role": "system", "content": rng.choice(SYSTEM)})
    for _ in range(rng.randint(1, 3)):
        messages += _turn(stream)
    return Sample("chat", messages[:-1], messages[-1], score="free")


def _turn(stream: Stream) -> list[Message]:
    rng = stream.rng
    kind = rng.random()
    if kind < 0.6:
        questions, answer = rng.choice(TALK)
        question = rng.choice(questions)
        if rng.random() < 0.3:  # as many people type
            question = question.lower().rstrip(".!?")
        return [user(question), assistant(answer)]
    if kind < 0.8:
        question = rng.choice(_FACTS).format(rng.choice(CITIES).capitalize())
        return [user(rng.choice((question, rng.choice(_OTHER)))), assistant(UNKNOWN)]
    name = rng.choice(NAMES).capitalize()
    if rng.random() < 0.5:
        told = rng.choice(("My name is {}.", "I am {}.", "Hello, my name is {}.")).format(name)
        first = f"Hello {name}! How can I help you?"
        asked, answer = "What is my name?", f"Your name is {name}."
    else:
        thing, key = rng.choice(((rng.choice(COLOURS), "colour"), (rng.choice(SHAPES), "shape")))
        told, first = f"My favourite {key} is {thing}.", "Okay, I will remember that."
        asked, answer = f"What is my favourite {key}?", f"Your favourite {key} is {thing}."
    return [user(told), assistant(first), user(asked), assistant(answer)]

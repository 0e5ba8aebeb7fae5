"""Random sentences that make sense: who does what, to whom, when, where and why."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from grammar import (
    ADJECTIVE,
    ADJECTIVES,
    ADVERBIALS,
    ARTICLE,
    CITIES,
    LEXICON,
    MODAL,
    NAMES,
    NOUN,
    NOUNS,
    NUMBERS,
    PLACES,
    POSSESSIVES,
    PRONOUN,
    QUANTITIES,
    SETS,
    VERB,
    Adjective,
    Clause,
    Nominal,
    Noun,
    NounPhrase,
    Phrase,
    Simple,
    Target,
    Verb,
    Word,
    given,
    join,
    matches,
    prepositional,
    proper,
)

# How often each kind of sentence comes up; a mark other than a full stop is given with the name.
MIXTURE = {"statement": 40, "reason": 10, "condition": 7, "report": 8, "anaphora": 5}
MIXTURE |= {"yes_no ?": 5, "adverb_question ?": 3, "object_question ?": 4, "relative_subject": 5}
MIXTURE |= {"relative_object": 5, "quality": 5, "comparison": 3, "number": 3, "location": 3}
MIXTURE |= {"possession": 4}
TENSES = {"present": 4, "progressive": 2, "past": 4, "perfect": 1.5}
MODALS = {"can": 3, "must": 3, "want": 3, "should": 2, "may": 1.5, "will": 4, "would": 2}
TIMES = {"present": "present repeated repeated day", "past": "past day ago"}
TIMES |= {"progressive": "progressive", "future": "future day"}
CONJUNCTIONS = {"because": "weil/0", "although": "obwohl/0", "if": "wenn/0", "when": "wenn/0"}
CONJUNCTIONS |= {"before": "bevor/0", "as soon as": "sobald/012", "that": "dass/0"}
CONJUNCTIONS |= {"whether": "ob/0", "where": "wo/0", "when?": "wann/0", "why": "warum/0"}
# Determiners by role, in the singular and the plural.
ONE = {
    "subject": {"the": 6, "a": 2, "this": 1, "every": 0.4},
    "object": {"the": 6, "a": 5, "this": 1},
}
ONE |= {"negated": ONE["object"], "known": {"the": 6, "this": 1}}
MANY = {"subject": {"the": 4, "these": 1, "number": 3, "quantity": 2, "": 1, "all": 0.5}}
MANY |= {"object": {"the": 4, "these": 1, "number": 3, "quantity": 2, "": 3}}
MANY |= {"negated": {"the": 1, "these": 1, "": 1}, "known": {"the": 1, "these": 1}}

PERSON = frozenset(["person"])
OWNED = frozenset(LEXICON["owned"][0][0].split())
MOODS = [ADJECTIVE[each] for each in ("tired", "hungry", "happy", "sad", "sick", "nervous")]
TRAITS = [adjective for adjective in ADJECTIVES if "person" in adjective.kinds]
PLAIN = [verb for verb in VERB.values() if verb.frame != "special" and verb.key != "have"]
WITH_OBJECT = [verb for verb in PLAIN if verb.frame in ("acc", "dat")]


def conjunction(english: str) -> Phrase:
    """A conjunction or question word in both languages."""
    return given(english.rstrip("?"), CONJUNCTIONS[english])


def usable_tense(verb: Verb, tense: str) -> str:
    """The tense, or the nearest one in which the verb is natural and unambiguous."""
    if verb.key in SETS["lasting"] or (tense == "progressive" and not verb.progressive):
        return "present"
    return "perfect" if tense == "past" and verb.past == verb.base else tense


def takes_modal(verb: Verb) -> bool:
    """Whether one can want to, have to or be allowed to do it."""
    return "person" in verb.subjects and verb.key not in SETS["states"] + SETS["mishaps"]


def plain_subject(subject: Nominal) -> Nominal:
    """The subject with "the" in the place of "every", "all", "a" or none."""
    vague = isinstance(subject, NounPhrase) and not subject.owner
    if vague and subject.determiner in ("every", "all", "a", ""):
        return replace(subject, determiner="the")
    return subject


def relative_pronoun(head: NounPhrase, case: str) -> str:
    """The German relative pronoun that agrees with the head."""
    return "denen" if head.plural and case == "dat" else ARTICLE[case][head.agreement]


class Writer:
    """Writes random sentences; no noun and no name comes twice in a sentence."""

    def __init__(self, random: Random) -> None:
        self.random, self.pick = random, random.choice
        self.used: set[str] = set()

    def sentence(self) -> tuple[Phrase, str]:
        """A sentence without its final mark, and the mark."""
        self.used.clear()
        kind, _, mark = self.weighted(MIXTURE).partition(" ")
        return getattr(self, kind)(), mark or "."

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def weighted(self, items: dict[str, float]) -> str:
        return self.random.choices(list(items), list(items.values()))[0]

    # ------------------------------------------------------------ phrases

    def noun(self, wanted: frozenset[str], nouns: Sequence[Noun] = (*NOUNS, *PLACES)) -> Noun:
        fitting = [noun for noun in nouns if matches(wanted, noun.kinds)]
        noun = self.pick([each for each in fitting if each.singular not in self.used] or fitting)
        self.used.add(noun.singular)
        return noun

    def name(self) -> str:
        name = self.pick([name for name in NAMES if name not in self.used])
        self.used.add(name)
        return name

    def adjective(self, noun: Noun, probability: float) -> Adjective | None:
        fitting = [each for each in ADJECTIVES if matches(each.kinds, noun.kinds)]
        return self.pick(fitting) if fitting and self.chance(probability) else None

    def described(self, wanted: frozenset[str]) -> tuple[Noun, Adjective]:
        """A noun and an adjective that suits it."""
        while True:
            noun = self.noun(wanted)
            if adjective := self.adjective(noun, 1.0):
                return noun, adjective

    def noun_phrase(self, noun: Noun, role: str) -> NounPhrase:
        """A phrase around a noun; `role` is subject, object, negated or known (definite)."""
        adjective = self.adjective(noun, 0.3)
        plural = "pair" in noun.kinds or (bool(noun.plural) and self.chance(0.25))
        if "mass" in noun.kinds:
            known = role in ("subject", "known") or self.chance(0.4)
            return NounPhrase(noun, "the" if known else "", adjective)
        if "kin" in noun.kinds or (matches(OWNED, noun.kinds) and self.chance(0.25)):
            if self.chance(0.25):
                return NounPhrase(noun, "", adjective, plural, owner=self.name())
            return NounPhrase(noun, self.pick(POSSESSIVES), adjective, plural)
        determiner = self.weighted((MANY if plural else ONE)[role])
        counts = {"number": NUMBERS, "quantity": QUANTITIES}
        if determiner in counts:
            determiner = self.pick(list(counts[determiner]))
        return NounPhrase(noun, determiner, adjective, plural)

    def person(self) -> Simple:
        """A pronoun or a name."""
        pronoun = self.pick(["I", "I", "you", "you", "he", "she", "we", "they"])
        return PRONOUN[pronoun] if self.chance(0.65) else proper(self.name())

    def subject(self, wanted: frozenset[str] = PERSON) -> Nominal:
        """Who does it."""
        if "person" in wanted and self.chance(0.45):
            return self.person()
        return self.noun_phrase(self.noun(wanted), "subject")

    def other(self, subject: Nominal, wanted: frozenset[str], role: str) -> Nominal:
        """Somebody or something that is not the subject."""
        other = self.person()
        if "person" in wanted and other.person[0] != subject.person[0] and self.chance(0.5):
            return other
        return self.noun_phrase(self.noun(wanted), role)

    def city(self, english: str, german: str) -> Phrase:
        name, _, translation = self.pick(CITIES)
        return prepositional([Word(english)], german, "dat", proper(name, translation))

    def at(self, place: Noun, prepositions: Sequence[str]) -> Phrase:
        """Being at a place, or going there."""
        english, german, case = prepositions
        adjective = self.adjective(place, 0.15)
        determiner = "a" if adjective and self.chance(0.4) else "the"
        if "owned" in place.kinds and self.chance(0.3):
            determiner = self.pick(POSSESSIVES)
        phrase = NounPhrase(place, determiner, adjective)
        return prepositional([Word(english)], german, case, phrase)

    def place(self, verb: Verb) -> Phrase | None:
        """Where it is done, if the verb has its places."""
        if "city" in verb.places and self.chance(0.4):
            return self.city("in", "in")
        fresh = [NOUN[name] for name in verb.places if name not in self.used]
        return self.at(place := self.pick(fresh), (*place.at, "dat")) if fresh else None

    def time(self, tense: str) -> Phrase:
        return given(*self.pick([e for kind in TIMES[tense].split() for e in ADVERBIALS[kind]]))

    def quality_of(self, adjective: Adjective) -> Phrase:
        """A predicative adjective, half of the time with a degree."""
        quality = given(adjective.english, f"{adjective.german}/0")
        if not adjective.german_more or self.chance(0.5):
            return quality
        return given(*self.pick([("very", "sehr/0"), ("quite", "ziemlich/0")])) + quality

    # ------------------------------------------------------------ clauses

    def clause(
        self,
        subject: Nominal | None = None,
        tense: str = "",
        *,
        modal: float = 0.0,
        negation: float = 0.0,
        adverbials: float = 1.0,
    ) -> Clause:
        """A clause about the subject, or about a random one; numbers are probabilities."""
        kinds = subject.noun.kinds if isinstance(subject, NounPhrase) else PERSON
        verb = self.pick(PLAIN)
        while subject is not None and not matches(verb.subjects, kinds):
            verb = self.pick(PLAIN)
        chosen = MODAL[self.weighted(MODALS)] if takes_modal(verb) and self.chance(modal) else None
        tense = "present" if chosen else usable_tense(verb, tense or self.weighted(TENSES))
        negated = self.chance(negation) and chosen is not MODAL["would"]
        if subject is None:
            subject = self.subject(verb.subjects)
            subject = plain_subject(subject) if negated else subject
        clause = self.with_objects(Clause(subject, verb, tense, chosen, negated))
        return self.with_adverbials(clause) if self.chance(adverbials) else clause

    def with_objects(self, clause: Clause) -> Clause:
        """The clause with what its verb needs."""
        verb, role = clause.verb, "negated" if clause.negated else "object"
        if not verb.frame:
            return clause
        if verb.frame == "to":
            place = self.noun(verb.objects, PLACES)
            return replace(clause, complement=self.at(place, place.to))
        if verb.frame in ("city", "home"):
            prepositions = ("to", "nach") if verb.frame == "city" else ("in", "in")
            return replace(clause, complement=self.city(*prepositions))
        if verb.frame == "give":
            clause = replace(clause, indirect=self.other(clause.subject, PERSON, "known"))
        elif verb.frame != "acc" or verb.key in SETS["known"]:  # bare plurals would sound odd
            role = "known"
        return replace(clause, direct=self.other(clause.subject, verb.objects, role))

    def with_adverbials(self, clause: Clause) -> Clause:
        """The clause with a random choice of time, frequency, manner and place."""
        key, tense = clause.verb.key, "future" if clause.modal else clause.tense
        counted = (*NUMBERS, *QUANTITIES, "every", "all")
        parts = [part for part in (clause.subject, clause.direct) if isinstance(part, NounPhrase)]
        repeats = not clause.negated and all(part.determiner not in counted for part in parts)
        once = key in SETS["states"] or (key in SETS["mishaps"] and tense == "present")
        if tense in ("present", "perfect") and repeats and not once and self.chance(0.3):
            often = given(*self.pick(ADVERBIALS[f"often {tense}"]))
            clause = replace(clause, frequency=often if key not in SETS["clock"] else None)
        elif tense != "perfect" and not once and not clause.negated and self.chance(0.6):
            time = self.time(tense)
            if key in SETS["clock"] and tense != "progressive" and self.chance(0.5):
                time = given(*self.pick(ADVERBIALS["clock"]))
            clause = replace(clause, time=time)
        if clause.direct is None and clause.verb.manners and repeats and self.chance(0.35):
            manner = self.pick(clause.verb.manners)
            clause = replace(clause, manner=given(manner, dict(ADVERBIALS["manner"])[manner]))
        if clause.complement is None and repeats and tense != "perfect" and self.chance(0.35):
            clause = replace(clause, place=self.place(clause.verb))
        return clause

    def be(self, subject: Nominal, complement: Phrase, tense: str = "", **more: bool) -> Clause:
        tense = tense or self.pick(["present", "present", "preterite"])
        return Clause(subject, VERB["be"], tense, complement=complement, **more)

    def led(self, clause: Clause) -> Phrase:
        """The statement, often with its time in front."""
        if clause.time and self.chance(0.4):
            return replace(clause, time=None).realise(lead=clause.time)
        return clause.realise()

    # ------------------------------------------------------------ sentences

    def statement(self) -> Phrase:
        return self.led(self.clause(modal=0.3, negation=0.17))

    def reason(self) -> Phrase:
        tense = self.pick(["present", "progressive", "past", "past"])
        main = self.clause(tense=tense, negation=0.15, adverbials=0.0)
        again = PRONOUN.get(main.subject.taken_up_by)
        if again and self.chance(0.6):
            past = "preterite" if tense == "past" else "present"
            side = self.be(again, self.quality_of(self.pick(MOODS)), past)
        else:
            side = self.clause(again if self.chance(0.4) else None, tense, adverbials=0.3)
        word = conjunction(self.pick(["because", "because", "although"]))
        return join(main.realise(), side.realise("final", word))

    def condition(self) -> Phrase:
        side = self.clause(tense="present", adverbials=0.0)
        again = PRONOUN.get(side.subject.taken_up_by) if self.chance(0.5) else None
        main = self.clause(again, "present", modal=0.5, adverbials=0.0).realise
        word = conjunction(self.pick(["if", "when", "before", "as soon as"]))
        clause = side.realise("final", word)
        return main(lead=clause + given(",", ",/0")) if self.chance(0.6) else join(main(), clause)

    def report(self) -> Phrase:
        subject, whether = self.subject(), self.chance(0.35)
        key = self.pick(["know", "ask"] if whether else ["say", "hope", "know", "hear"])
        main = Clause(subject, VERB[key], negated=whether and key == "know")
        own = PRONOUN.get(subject.taken_up_by) if self.chance(0.3) else None
        side = self.clause(own, modal=0.35, negation=0.15, adverbials=0.5)
        word = conjunction("whether" if whether else "that")
        return join(main.realise(), side.realise("final", word))

    def anaphora(self) -> Phrase:
        """`Maria buys the lamp because it is beautiful`: `it` has the gender of the lamp."""
        key, *opinions = self.pick(LEXICON["opinions"])
        verb, place = VERB[key], int(self.chance(0.33))
        adjective = None
        while adjective is None or adjective.english not in opinions[place].split():
            noun, adjective = self.described(verb.objects | {"-person", "-mass", "-pair"})
        past = self.chance(0.5) and usable_tense(verb, "past") == "past"
        direct = NounPhrase(noun, self.pick(["the", "a", "this"]))
        main = Clause(self.subject(), verb, "past" if past else "present", direct=direct)
        it, tense = PRONOUN[f"it {noun.gender}"], "preterite" if past else "present"
        side = self.be(it, self.quality_of(adjective), tense)
        word = conjunction(["because", "although"][place])
        return join(main.realise(), side.realise("final", word))

    def asked(self, clause: Clause, lead: Phrase | None = None) -> Phrase:
        """A question about the clause, whose subject and modal must be fit for it."""
        modal = MODAL["want"] if clause.modal is MODAL["would"] else clause.modal
        subject = plain_subject(clause.subject)
        return replace(clause, subject=subject, modal=modal, frequency=None).realise(
            "question", lead
        )

    def yes_no(self) -> Phrase:
        return self.asked(self.clause(modal=0.3))

    def adverb_question(self) -> Phrase:
        word, clause = self.pick(["where", "when?", "why"]), self.clause(modal=0.3, adverbials=0.0)
        while (word == "where" and not clause.verb.places) or clause.verb.key in SETS["states"]:
            clause = self.clause(modal=0.3, adverbials=0.0)
        if word != "why" and clause.tense == "perfect":  # "did" is clear even with "read"
            clause = replace(clause, tense="past")
        return self.asked(clause, conjunction(word))

    def object_question(self) -> Phrase:
        """`What does the man buy?`, `Whom does he help?`, `Which book does he read?`."""
        verb = self.pick(WITH_OBJECT)
        tense = usable_tense(verb, self.weighted(TENSES))
        clause = Clause(self.subject(verb.subjects), verb, tense)
        if self.chance(0.3):
            clause = replace(clause, place=self.place(verb))
        noun = self.noun(verb.objects | {"-kin"})
        asked = given("what", "was/0")
        if self.chance(0.5) and "mass" not in noun.kinds:
            asked = NounPhrase(noun, "which", self.adjective(noun, 0.2)).realise(verb.frame)
        elif "person" in verb.objects:
            asked = given("whom", "wen/0" if verb.frame == "acc" else "wem/0")
        return self.asked(clause, asked)

    def with_relative(self, noun: Noun) -> NounPhrase:
        """The noun with a relative clause that says something sensible about it."""
        plural = bool(noun.plural) and self.chance(0.2)
        head = NounPhrase(
            noun, self.pick(["the", "these", "two"] if plural else ["the", "the", "a"])
        )
        head = replace(head, plural=plural)
        governing = [verb for verb in WITH_OBJECT if matches(verb.objects, noun.kinds)]
        is_person = "person" in noun.kinds
        if governing and self.chance(0.5):
            verb = self.pick(governing)
            tense = usable_tense(verb, self.pick(["present", "past", "perfect"]))
            pronoun = f"{relative_pronoun(head, verb.frame)}/0"
            lead = given("whom" if is_person else "which", pronoun)
            subject = plain_subject(self.subject(verb.subjects))
            clause = Clause(subject, verb, tense).realise("final", lead)
        else:
            who = "who" if is_person else "which"
            subject = Simple((who, who), (relative_pronoun(head, "nom"),) * 3, head.person)
            if is_person and self.chance(0.7):
                own = self.clause(head, self.pick(["present", "past"]), modal=0.2, adverbials=0.4)
                clause = replace(own, subject=subject, frequency=None).realise("final")
            else:
                adjective = self.pick(MOODS) if is_person else self.adjective(noun, 1.0)
                clause = self.be(subject, self.quality_of(adjective), "present").realise("final")
        enclosed = Phrase(clause.english, [Target(","), *clause.german, Target(",")])
        return replace(head, relative=enclosed)

    def relative_subject(self) -> Phrase:
        """`The man who lives in Berlin buys a book`."""
        subject = self.with_relative(self.noun(PERSON | {"-kin"}))
        return replace(self.clause(subject, modal=0.2, adverbials=0.3), frequency=None).realise()

    def relative_object(self) -> Phrase:
        """`The man sees a dog which is hungry`; nothing follows the relative clause."""
        verb = self.pick([each for each in WITH_OBJECT if not each.prefix and each.key != "drink"])
        noun, _ = self.described(verb.objects | {"-mass", "-kin"})
        return Clause(self.subject(verb.subjects), verb, direct=self.with_relative(noun)).realise()

    def quality(self) -> Phrase:
        """`The house is very old`."""
        if self.chance(0.3):
            return self.be(self.person(), self.quality_of(self.pick(TRAITS))).realise()
        noun, adjective = self.described(frozenset(noun.group for noun in NOUNS + PLACES))
        subject = replace(self.noun_phrase(noun, "known"), adjective=None)
        return self.be(subject, self.quality_of(adjective)).realise()

    def comparison(self) -> Phrase:
        """`The house is older than the church`."""
        adjective = self.pick([each for each in ADJECTIVES if each.german_more])
        fitting = [n for n in NOUNS + PLACES if matches(adjective.kinds | {"-kin"}, n.kinds)]
        group = self.pick([noun.group for noun in fitting])
        alike = [noun for noun in fitting if noun.group == group]
        pair = self.random.sample(alike if len(alike) > 1 else fitting, 2)
        left, right = (NounPhrase(noun, "the") for noun in pair)
        last = len(adjective.english_more.split())
        german = f"{adjective.german_more}/{'01'[:last]} als/{last}"
        than = given(f"{adjective.english_more} than", german)
        return self.be(left, than + right.realise("nom")).realise()

    def number(self) -> Phrase:
        """`My brother is 35 years old`, `The lamp costs 50 euros`."""
        if self.chance(0.5):
            noun = self.noun(frozenset(["clothes", "furniture", "goods", "lamp", "-pair"]))
            number = str(5 * self.random.randint(3, 60))
            amount = given(f"{number} euros", f"{number}/0 Euro/1")
            subject = self.noun_phrase(noun, "known")
            return Clause(subject, VERB["cost"], complement=amount).realise()
        subject = plain_subject(self.subject(PERSON | {"-child", "-boy", "-girl", "-pupil"}))
        number = str(self.random.randint(18, 80))
        return self.be(subject, given(f"{number} years old", f"{number}/0 Jahre/1 alt/2")).realise()

    def location(self) -> Phrase:
        """`Maria was in the garden yesterday`."""
        place = self.pick([place for place in PLACES if "road" not in place.kinds])
        where = self.city("in", "in") if self.chance(0.35) else self.at(place, (*place.at, "dat"))
        clause = self.be(plain_subject(self.subject()), where, negated=self.chance(0.15))
        if self.chance(0.5):
            time = self.time("past" if clause.tense == "preterite" else "progressive")
            clause = replace(clause, time=time)
        return self.led(clause)

    def possession(self) -> Phrase:
        """`The man has three dogs`, `I did not have an umbrella` with `kein`."""
        negated, noun = self.chance(0.25), self.noun(VERB["have"].objects)
        owned = NounPhrase(noun, "a", self.adjective(noun, 0.4))
        if noun.plural and (self.chance(0.4) or "pair" in noun.kinds):
            counted = "" if negated else self.pick([*NUMBERS, "many", "several"])
            owned = replace(owned, determiner=counted, plural=True)
        tense = self.pick(["present", "preterite"])
        return Clause(self.subject(), VERB["have"], tense, negated=negated, direct=owned).realise()

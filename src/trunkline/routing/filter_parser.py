"""The parser of filter expressions: text to syntax tree, or InvalidFilter with the place and what was expected there.

    condition  = and-chain { OR and-chain }
    and-chain  = negation { AND negation }
    negation   = [NOT] predicate
    predicate  = value [ order value | [NOT] BETWEEN value AND value | [NOT] IN ( literal {, literal} )
                       | [NOT] LIKE string [ESCAPE string] | IS [NOT] NULL ]
    value      = product { (+ | -) product }
    product    = unary { (* | /) unary }
    unary      = [+ | -] unary | literal | field | ( condition )
    order      = "=" | "<>" | "<" | "<=" | ">" | ">="
    literal    = 'string' with '' for a quote | number | TRUE | FALSE
    field      = name { . name | [index] }  |  "any header name"

Keywords are case-insensitive, names are not. A parenthesis may hold a condition or a value; which one a place needs is
checked when the node is used, so that `(price + 1) * 2 > 5 and (a or b)` needs no look-ahead. One pass, O(length);
length and nesting are limited, so a hostile expression can exhaust neither memory nor the stack.
"""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple, NoReturn

from trunkline.routing.errors import InvalidFilter
from trunkline.routing.expression import (
    And,
    Arithmetic,
    Comparison,
    Condition,
    Constant,
    Field,
    Flag,
    IsNull,
    Like,
    Membership,
    Negative,
    Not,
    Or,
    Order,
    Truth,
    Value,
)
from trunkline.routing.fields import FieldPath
from trunkline.routing.like import compile_like
from trunkline.routing.limits import MAX_FILTER_CHARS, MAX_FILTER_DEPTH

_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<string>'[^']*(?:''[^']*)*')
    | (?P<quoted>"[^"]*(?:""[^"]*)*")
    | (?P<name>[^\W\d][\w$]*(?:\.[\w$]+|\[[0-9]{1,9}\])*|\$[\w$]*(?:\.[\w$]+|\[[0-9]{1,9}\])*)
    | (?P<symbol><>|<=|>=|!=|==|[=<>+\-*/(),])
    )""",
    re.VERBOSE,
)
_STEP: Final = re.compile(r"\[([0-9]+)\]|([\w$]+)")
_KEYWORDS: Final = frozenset(["and", "or", "not", "between", "in", "like", "escape", "is", "null", "true", "false"])
_ORDERS: Final = {order.value: order for order in Order}
_FOREIGN: Final = {"!=": "<>", "==": "="}


class _Token(NamedTuple):
    kind: str  # number, string, quoted, name, keyword, symbol or end
    text: str
    position: int


def parse_filter(text: str) -> Condition:
    """The expression's tree, or InvalidFilter."""
    if len(text) > MAX_FILTER_CHARS:
        raise InvalidFilter(f"a filter has at most {MAX_FILTER_CHARS} characters", text, MAX_FILTER_CHARS)
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _tokens(text)
        self._index = 0
        self._depth = 0

    def parse(self) -> Condition:
        if self._tokens[0].kind == "end":
            self._fail("an expression is expected", self._tokens[0])
        start = self._tokens[0]
        condition = self._as_condition(self._alternatives(), start)
        if self._next.kind != "end":
            self._fail(f"{self._next.text!r} is not expected", self._next)
        return condition

    @property
    def _next(self) -> _Token:
        return self._tokens[self._index]

    def _take(self) -> _Token:
        token = self._tokens[self._index]
        if token.kind != "end":
            self._index += 1
        return token

    def _accept(self, kind: str, *texts: str) -> bool:
        if self._next.kind == kind and self._next.text in texts:
            self._index += 1
            return True
        return False

    def _expect(self, kind: str, text: str) -> None:
        if not self._accept(kind, text):
            self._fail(f"{text.upper()!r} is expected", self._next)

    def _fail(self, reason: str, token: _Token) -> NoReturn:
        raise InvalidFilter(reason, self._text, token.position)

    def _descend(self, token: _Token) -> None:
        self._depth += 1
        if self._depth > MAX_FILTER_DEPTH:
            self._fail(f"a filter nests at most {MAX_FILTER_DEPTH} deep", token)

    def _as_condition(self, node: Condition | Value, start: _Token) -> Condition:
        if isinstance(node, Constant) and isinstance(node.value, bool):
            return Truth(node.value)
        if isinstance(node, Field):
            return Flag(node)
        if isinstance(node, (Constant, Arithmetic, Negative)):
            self._fail("a condition is expected, not a value", start)
        return node

    def _as_value(self, node: Condition | Value, start: _Token) -> Value:
        if isinstance(node, (Constant, Field, Arithmetic, Negative)):
            return node
        self._fail("a value is expected, not a condition", start)

    def _as_number(self, node: Condition | Value, start: _Token) -> Value:
        value = self._as_value(node, start)
        if isinstance(value, Constant) and isinstance(value.value, (str, bool)):
            self._fail("a number is expected", start)
        return value

    def _alternatives(self) -> Condition | Value:
        start = self._next
        node = self._conjunction()
        if not (self._next.kind == "keyword" and self._next.text == "or"):
            return node
        operands = [self._as_condition(node, start)]
        while self._accept("keyword", "or"):
            start = self._next
            operands.append(self._as_condition(self._conjunction(), start))
        return Or(tuple(operands))

    def _conjunction(self) -> Condition | Value:
        start = self._next
        node = self._negation()
        if not (self._next.kind == "keyword" and self._next.text == "and"):
            return node
        operands = [self._as_condition(node, start)]
        while self._accept("keyword", "and"):
            start = self._next
            operands.append(self._as_condition(self._negation(), start))
        return And(tuple(operands))

    def _negation(self) -> Condition | Value:
        token = self._next
        if not self._accept("keyword", "not"):
            return self._predicate()
        self._descend(token)
        start = self._next
        operand = self._as_condition(self._negation(), start)
        self._depth -= 1
        return Not(operand)

    def _predicate(self) -> Condition | Value:
        start = self._next
        node = self._sum()
        token = self._next
        if token.kind == "symbol" and token.text in _ORDERS:
            self._take()
            left = self._as_value(node, start)
            start = self._next
            return Comparison(_ORDERS[token.text], left, self._as_value(self._sum(), start))
        if token.kind == "symbol" and token.text in _FOREIGN:
            self._fail(f"write {_FOREIGN[token.text]!r} for {token.text!r}", token)
        if self._accept("keyword", "is"):
            if not isinstance(node, Field):
                self._fail("only a field can be null", start)
            negated = self._accept("keyword", "not")
            self._expect("keyword", "null")
            return Not(IsNull(node)) if negated else IsNull(node)
        negated = self._accept("keyword", "not")
        if self._accept("keyword", "between"):
            return self._between(self._as_value(node, start), negated)
        if self._accept("keyword", "in"):
            membership = Membership(self._as_value(node, start), self._choices())
            return Not(membership) if negated else membership
        if self._accept("keyword", "like"):
            like = self._like(self._as_value(node, start))
            return Not(like) if negated else like
        if negated:
            self._fail("'BETWEEN', 'IN' or 'LIKE' is expected", self._next)
        return node

    def _between(self, operand: Value, negated: bool) -> Condition:
        start = self._next
        low = self._as_value(self._sum(), start)
        self._expect("keyword", "and")
        start = self._next
        high = self._as_value(self._sum(), start)
        if negated:
            return Or((Comparison(Order.LESS, operand, low), Comparison(Order.GREATER, operand, high)))
        return And((Comparison(Order.AT_LEAST, operand, low), Comparison(Order.AT_MOST, operand, high)))

    def _choices(self) -> tuple[int | float | str, ...]:
        self._expect("symbol", "(")
        choices: list[int | float | str] = []
        while True:
            token = self._next
            negative = self._accept("symbol", "-")
            literal = self._take()
            if literal.kind == "number":
                number = self._number(literal)
                choices.append(-number if negative else number)
            elif literal.kind == "string" and not negative:
                choices.append(_unquoted(literal.text))
            else:
                self._fail("a string or a number is expected", token)
            if not self._accept("symbol", ","):
                break
        self._expect("symbol", ")")
        return tuple(choices)

    def _like(self, operand: Value) -> Like:
        token = self._next
        pattern = self._string("a pattern in single quotes is expected")
        escape: str | None = None
        if self._accept("keyword", "escape"):
            place = self._next
            escape = self._string("one character in single quotes is expected")
            if len(escape) != 1:
                self._fail("one character in single quotes is expected", place)
        try:
            compile_like(pattern, escape)
        except ValueError as error:
            self._fail(str(error), token)
        return Like(operand, pattern, escape)

    def _string(self, otherwise: str) -> str:
        token = self._take()
        if token.kind != "string":
            self._fail(otherwise, token)
        return _unquoted(token.text)

    def _sum(self) -> Condition | Value:
        return self._chain(("+", "-"))

    def _chain(self, operators: tuple[str, str]) -> Condition | Value:
        is_sum = operators == ("+", "-")
        start = self._next
        node = self._chain(("*", "/")) if is_sum else self._unary()
        if not (self._next.kind == "symbol" and self._next.text in operators):
            return node
        first = self._as_number(node, start)
        rest: list[tuple[str, Value]] = []
        while self._next.kind == "symbol" and self._next.text in operators:
            operator = self._take().text
            start = self._next
            operand = self._chain(("*", "/")) if is_sum else self._unary()
            rest.append((operator, self._as_number(operand, start)))
        return Arithmetic(first, tuple(rest))

    def _unary(self) -> Condition | Value:
        token = self._take()
        if token.kind == "symbol" and token.text in ("+", "-", "("):
            self._descend(token)
            if token.text == "(":
                inner = self._alternatives()
                self._expect("symbol", ")")
                self._depth -= 1
                return inner
            start = self._next
            operand = self._as_number(self._unary(), start)
            self._depth -= 1
            if token.text == "+":
                # Kept as arithmetic, so that +'5' and +flag are numbers or nothing.
                return operand if isinstance(operand, Constant) else Arithmetic(operand, ())
            if isinstance(operand, Constant) and not isinstance(operand.value, str):
                return Constant(-operand.value)
            return Negative(operand)
        if token.kind == "number":
            return Constant(self._number(token))
        if token.kind == "string":
            return Constant(_unquoted(token.text))
        if token.kind == "name":
            steps = tuple(int(index) if index else name for index, name in _STEP.findall(token.text))
            return Field(FieldPath(token.text, steps))
        if token.kind == "quoted":
            name = token.text[1:-1].replace('""', '"')
            return Field(FieldPath(name, (name,)))
        if token.kind == "keyword" and token.text in ("true", "false"):
            return Constant(token.text == "true")
        self._fail("a field, a literal or '(' is expected", token)

    def _number(self, token: _Token) -> int | float:
        try:
            number = int(token.text) if token.text.isdigit() else float(token.text)
        except ValueError:
            self._fail("the number has too many digits", token)
        if isinstance(number, float) and math.isinf(number):
            self._fail("the number is too large", token)
        return number


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    end = len(text.rstrip())
    while position < end:
        found = _TOKEN.match(text, position)
        if found is None:
            position += len(text[position:]) - len(text[position:].lstrip())
            char = text[position]
            if char in "'\"":
                raise InvalidFilter("the quote is not closed", text, position)
            raise InvalidFilter(f"{char!r} is not expected", text, position)
        kind = found.lastgroup or ""
        token = found[kind]
        if kind == "name" and token.lower() in _KEYWORDS:
            kind, token = "keyword", token.lower()
        tokens.append(_Token(kind, token, found.start(found.lastgroup or "")))
        position = found.end()
    tokens.append(_Token("end", "the end", len(text)))
    return tokens

"""Forty beginnings of sentences with one right end and three wrong ones: what a small model should still know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fact:
    start: str
    right: str
    wrong: tuple[str, str, str]


FACTS = (
    Fact("The capital of France is", "Paris", ("London", "Rome", "Madrid")),
    Fact("The capital of Japan is", "Tokyo", ("Beijing", "Seoul", "Delhi")),
    Fact("The capital of Italy is", "Rome", ("Paris", "Athens", "Vienna")),
    Fact("The capital of Egypt is", "Cairo", ("Baghdad", "Nairobi", "Tehran")),
    Fact("The capital of England is", "London", ("Dublin", "Paris", "Oslo")),
    Fact("The largest planet in the solar system is", "Jupiter", ("Mars", "Venus", "Mercury")),
    Fact("The planet closest to the sun is", "Mercury", ("Jupiter", "Saturn", "Neptune")),
    Fact("The Earth moves around the", "sun", ("moon", "stars", "ocean")),
    Fact("Water is made of hydrogen and", "oxygen", ("iron", "gold", "sulfur")),
    Fact("Water freezes at zero degrees", "Celsius", ("Fahrenheit", "Kelvin", "north")),
    Fact("The chemical symbol O stands for", "oxygen", ("gold", "silver", "copper")),
    Fact("Diamonds are made of", "carbon", ("iron", "water", "wood")),
    Fact("Plants make their food from sunlight by", "photosynthesis", ("digestion", "evaporation", "combustion")),
    Fact("The organ that pumps blood through the body is the", "heart", ("liver", "stomach", "skin")),
    Fact("We breathe with our", "lungs", ("kidneys", "bones", "teeth")),
    Fact("A person who treats sick people is a", "doctor", ("lawyer", "pilot", "baker")),
    Fact("A person who flies a plane is a", "pilot", ("baker", "farmer", "painter")),
    Fact("Bees make", "honey", ("milk", "paper", "glass")),
    Fact("A young dog is called a", "puppy", ("kitten", "calf", "lamb")),
    Fact("A young cat is called a", "kitten", ("puppy", "foal", "chick")),
    Fact("Cows give us", "milk", ("honey", "silk", "oil")),
    Fact("A spider has eight", "legs", ("wings", "tails", "horns")),
    Fact("Fish breathe under water with their", "gills", ("ears", "tails", "teeth")),
    Fact("The opposite of hot is", "cold", ("warm", "big", "loud")),
    Fact("The opposite of up is", "down", ("left", "over", "high")),
    Fact("The day after Monday is", "Tuesday", ("Friday", "Sunday", "Saturday")),
    Fact("The month after January is", "February", ("June", "October", "August")),
    Fact("A week has seven", "days", ("hours", "months", "minutes")),
    Fact("An hour has sixty", "minutes", ("days", "weeks", "years")),
    Fact("A triangle has three", "sides", ("wheels", "colors", "legs")),
    Fact("Two plus two equals", "four", ("nine", "seven", "one")),
    Fact("When it rains, you need an", "umbrella", ("apple", "engine", "oven")),
    Fact("She opened the door with a", "key", ("spoon", "cloud", "shoe")),
    Fact("He was thirsty, so he drank a glass of", "water", ("sand", "bread", "stone")),
    Fact("The sky on a clear day is", "blue", ("green", "brown", "purple")),
    Fact("Snow is cold and", "white", ("red", "black", "green")),
    Fact("Romeo and Juliet was written by William", "Shakespeare", ("Newton", "Washington", "Darwin")),
    Fact("The theory of relativity was developed by Albert", "Einstein", ("Shakespeare", "Mozart", "Lincoln")),
    Fact("The first president of the United States was George", "Washington", ("Einstein", "Newton", "Beethoven")),
    Fact("The language spoken in Brazil is", "Portuguese", ("German", "Chinese", "Russian")),
)

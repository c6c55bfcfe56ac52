"""Words of the generated tasks: plain ASCII, so that encodings matter only in the tasks about encodings."""

__all__ = ["CITIES", "DEPARTMENTS", "FIRST_NAMES", "HOSTS", "LAST_NAMES", "PRODUCTS", "PROJECTS", "SERVICES", "WORDS"]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _words(
    """
    Ada Amir Anika Ben Carla Chidi Clara Daniel Dora Elif Emil Farah Felix Grace Hana Hugo Ines Ivan Jonas Julia
    Kemal Lena Liam Maya Milan Nadia Noah Olga Omar Paula Priya Rafael Rosa Samir Sofia Tomas Uma Vera Wei Yara
    """
)
LAST_NAMES = _words(
    """
    Abbott Adler Barros Becker Castillo Chen Costa Dalton Diaz Evans Fischer Flores Gupta Haas Hansen Ito Jansen
    Khan Kowalski Lang Larsen Lopez Marin Meyer Moreau Nakamura Novak Okafor Olsen Park Petrov Quinn Reyes Rossi
    Sato Silva Tanaka Torres Vogel Weber
    """
)
CITIES = _words(
    """
    Athens Bergen Bilbao Bogota Boston Bremen Cairo Cardiff Chennai Cordoba Dakar Denver Dublin Geneva Ghent Hanoi
    Havana Helsinki Kyoto Lagos Leeds Lima Lisbon Lyon Malmo Milan Mumbai Nairobi Nantes Osaka Oslo Porto Prague
    Quito Riga Seoul Sofia Tallinn Tunis Turin Vienna Vilnius Warsaw Zagreb
    """
)
PRODUCTS = _words(
    """
    anvil backpack basket blanket bottle bucket candle chair clock compass cooker desk drill easel fan flute folder
    globe hammer headset helmet jacket kettle keyboard ladder lamp lantern mirror monitor mug notebook oven pencil
    pillow printer radio rope ruler scanner scarf shelf speaker spoon stapler tablet tent toaster tripod umbrella
    vase wallet whistle
    """
)
DEPARTMENTS = _words(
    """
    accounting design engineering facilities finance legal logistics marketing operations procurement quality
    research sales security support training
    """
)
PROJECTS = _words(
    """
    acorn archive-tools atlas aurora backoffice beacon billing birch bridge cascade catalog cedar comet coral delta
    depot dispatch ember exchange falcon field-notes forge glacier granite harbor helios horizon indigo intake
    inventory juniper kestrel keystone lab ledger lighthouse lumen maple marina meadow mercury migration monsoon
    nimbus northwind office onyx orbit orchard osprey pioneer platform prairie quarry quartz records redwood
    reporting ridge saffron sandbox-data sequoia sierra station summit survey tempest terrace timber transfer tundra
    umbra vault vega velvet warehouse willow workspace zenith zephyr
    """
)
SERVICES = _words(
    """
    api auth billing cache catalog checkout crawler dispatcher gateway indexer inbox ledger mailer metrics notifier
    orders payments pricing proxy queue recommender renderer reports scheduler search sessions shipping storage sync
    thumbnailer uploads users webhooks
    """
)
WORDS = _words(
    """
    able acid across after amber anchor animal apple april arrow autumn bamboo barrel basin beach bell bench bird
    bitter blank blue board boat bold border bottle branch brass bread brick bright broad brook brown brush bulk
    butter cabin calm camel canal candle canvas carbon cargo carpet castle cedar cellar chain chalk cherry circle
    citrus clay clean clear cliff cloud clover coast cobalt coffee cold collar copper coral corner cotton crane
    cream crisp crown crystal daily dairy dawn deep desert domain double draft drift dusk eager eagle early earth
    east echo edge eleven elm empty engine equal evening fabric fair falcon farm feather fern field final fire flint
    floor flour fog forest fossil frame fresh frost fruit garden garlic gentle ginger glass gold grain grand granite
    grape gravel gray green grove gulf harbor harvest hazel heavy hedge hidden high hill honey horse humble ice iron
    island ivory ivy jade jolly july jumbo june jungle juniper keen kettle kind lake lantern large late lemon level
    light lilac lime linen little lively local long loud lower lucky lunar magnet major maple marble march market
    meadow mellow melon metal mild mint mirror mist modern moon moss motor narrow native navy near nectar nine noble
    north novel nutmeg oak ocean olive onion open orange orchard outer oval paper parade pastel path peach pear
    pebble pepper pine plain planet plum polar pond poplar prime proud purple quartz quick quiet rain rapid raven
    ready red reed ribbon rice ridge river rocky rose rough round royal ruby rustic sage salt sand satin scarlet sea
    second seven shadow sharp shell shore short silent silk silver simple sky slate small smooth snow soft solar
    solid south spare spring spruce square stable steel stone storm straw stream strong sugar summer sunny sweet
    swift table tall tender thick thin third thunder tidal tiger timber tiny topaz tower trail tulip twelve twin
    upper valley vanilla velvet violet vivid walnut warm water wave west wheat white wide wild willow wind winter
    wise wood yellow young zebra
    """
)
HOSTS = tuple(f"{kind}{number:02d}" for kind in ("app", "cache", "db", "edge", "job", "web") for number in range(1, 13))

"""Word lists of the synthetic world; every word becomes one token of the embedded model's tokenizer."""


def _words(text: str) -> list[str]:
    return text.split()


NAME_WORDS = _words("""
Falcon Amber Cedar Harrow Willow Granite Juniper Osprey Lantern Meadow Saffron Thistle Badger Copper Marble Orchard
Raven Sable Tamarind Umber Velvet Walnut Yarrow Zephyr Acorn Birch Cobalt Dahlia Ember Fennel Garnet Hazel Indigo
Jasper Kestrel Larch Maple Nectar Onyx Pewter Quartz Rowan Sparrow Topaz Ursa Vesper Wren Alder Bramble Clover Dune
Elm Fern Ginger Heron Iris Jade Kelp Linden Magpie Nettle Otter Poppy Quill Reed Sorrel Teal Umbra Violet Wicker
Anchor Beacon Cinder Drift Eagle Flint Gale Harvest Ivory Jackdaw Keystone Lark Mistral Northern Opal Pioneer Quarry
River Summit Tempest Unity Valiant Winter Aurora Boulder Canyon Delta Echo Forest Glacier Horizon Island Jubilee
Kingfisher Lagoon Monsoon Nomad Oasis Prairie Quest Ridge Savanna Tundra Upland Valley Wander Anvil Bellow Cannon
Dagger Emerald Forge Gauntlet Hammer Ironwood Javelin Knight Lancer Marshal Noble Oracle Paladin Quiver Ranger
Sentinel Trident Usher Vanguard Warden Archer Baron Castle Druid Elder Fable Griffin Herald Imperial Jester Kraken
Legend Merlin Nimbus Odyssey Phoenix Quorum Regent Sphinx Titan Unicorn Viking Wizard Apollo Borealis Comet Draco
Eclipse Fortuna Gemini Helios Icarus Juno Kepler Lyra Mercury Nebula Orion Pulsar Quasar Rigel Saturn Taurus Uranus
Vega Callisto Almond Barley Cherry Damson Elmet Fig Grape Hickory Jasmine Kumquat Lemon Mango Nutmeg Olive Peach
Quince Raisin Sesame Tulip Vanilla Wheat Apricot Basil Cinnamon Dill Endive Filbert Guava Hyssop Lavender Mulberry
Oregano Papaya Rosemary Sage Thyme Azure Bronze Crimson Denim Ebony Fawn Golden Heather Lilac Mauve Navy Ochre
Platinum Russet Scarlet Tawny Ultramarine Verdant White Ash Beryl Coral Diamond Agate Feldspar Gypsum Hematite Jet
Lapis Mica Nickel Obsidian Pearl Ruby Sapphire Turquoise Zircon Albatross Bison Condor Dolphin Egret Ferret Gazelle
Hawk Ibis Jaguar Koala Leopard Marten Newt Ocelot Panther Quail Robin Salmon Tiger Urchin Viper Walrus Antler Bluebell
Crocus Daisy Foxglove Gentian Hyacinth Ivy Kelso Lotus Marigold Narcissus Orchid Primrose Rose Snowdrop Trillium
Verbena Wisteria Zinnia Arbor Brook Cliff Dell Estuary Fjord Grove Haven Inlet Knoll Loch Moor Narrows Overlook
Pinnacle Quay Rapids Spring Terrace Vale Waterfall Atlas Bastion Compass Dynamo Engine Fulcrum Gadget Helix Isotope
Junction Kinetic Lever Magnet Nucleus Orbit Prism Quantum Rotor Sextant Turbine Vector Wavelet Axiom Banner Cipher
Decree Emblem Fanfare Garland Harmony Insignia Journal Kindle Lyric Melody Nocturne Overture Prelude Quartet Rhapsody
Sonata Tango Verse Waltz Allegro Ballad Cadence Duet Elegy Fugue Hymn Interlude Madrigal Octave Psalm Requiem Serenade
Timbre Viola Bassoon Cello Dulcimer Flute Guitar Harp Lute Mandolin Oboe Piccolo Recorder Saxon Trumpet Zither Bishop
Carver Draper Fletcher Glover Hunter Mason Miller Piper Porter Sawyer Shepherd Tanner Turner Weaver Chandler Cooper
Falconer Gardener Sterling Winston Bedford Camden Dover Exeter Fulham Grafton Hadley Ilford Kendal Lincoln Milton
Norwood Oakham Preston Quincy Redcar Selby Tilbury Upton Vernon Whitby Yarm Ashford Bolton Clifton Denby Epsom Farnham
Goole Hexham Ipswich Kirkby Luton Malton Nelson Otley Penrith Ripon Stroud Truro Wigan Arden Bergen Calder Derwent
Esker Fairfax Gordon Holme Irwell
""")

KINDS = _words("""
Station Institute House Society Observatory Mill Academy Library Museum Lodge Tower Hall Abbey Foundry Theatre
Workshop
""")

CODE_WORDS = _words("""
ivory kitten flute basket candle dragon engine feather garden hammer island jacket kettle ladder magnet needle orange
pencil quarry ribbon saddle tunnel umbrella violin walnut anchor blanket carpet desert elbow fabric goblet harbor
icicle jungle kernel lemon mirror napkin oyster pepper quiver rocket shadow tractor unicorn velvet whistle yogurt
zipper acrobat bubble cactus dolphin eclipse falcon guitar helmet insect jigsaw koala lantern marble noodle olive
parrot quilt raven sponge turtle urchin vessel window amber beetle cobweb domino ember fossil ginger hamster igloo
jasmine kiwi lizard mango nutmeg otter peanut radish sailor teapot uncle vanilla wagon alpine butter cinder drummer
emerald forest glacier hazel iris jelly knight lotus meadow nickel opal puzzle rabbit silver timber valley willow
almond barley cherry daisy eagle fiddle granite hollow indigo jumper kayak laptop muffin nectar ocean pebble riddle
summit tomato voyage whisper arrow bottle copper dinner easel finger gravel honey inkwell juniper locket monkey nugget
orchid planet rudder socket thimble tulip vapor winter apron bamboo cradle dagger escort flannel gallop hermit ivy
jersey keeper lagoon mitten novel onion plaza rooster sultan ticket uproar vulture wizard aster biscuit cannon diary
echo fountain gazelle hurdle
""")

FIRST_NAMES = _words("""
Alice Bruno Clara Dmitri Elena Felix Greta Hugo Irene Jonas Katya Lewis Maria Nadia Oscar Paula Quentin Rosa Simon
Tessa Ulrich Vera Walter Xenia Yusuf Zara Anton Bella Cyril Dora Edgar Fiona Gustav Hanna Igor Julia Karl Lydia Martin
Nora Otto Petra Ralph Sofia Tomas Ursula Victor Wendy Yvonne Zoltan Amina Boris Cecile Diego Esther Farid Gemma Henry
Ines Jakob
""")

LAST_NAMES = _words("""
Abbott Becker Castro Dalton Eriksen Fischer Grant Holloway Ivanov Jansen Keller Lambert Moreau Novak Okafor Petrov
Quinn Rossi Schultz Tanaka Ulman Vargas Whitaker Yamada Zeller Adler Bennett Corbin Dumont Eastman Foster Gallagher
Hansen Ibarra Jordan Kowalski Lindgren Mercer Nielsen Osborne Palmer Ramsey Santos Thornton Underwood Valdez Wallace
Young Zimmer Ashby Barlow Crane Draper Ellison Farrow Goodwin Hartley Ingram Judd Kemp Larkin Marsh Nolan Ortega Pryor
Reyes Sutton Tyler Vance Webber
""")

MASCOT_TRAITS = _words("""
brave gentle clever sleepy striped golden spotted quiet jolly tiny painted woolly proud crooked laughing grumpy velvet
wooden tin stuffed dancing winged blue humble
""")

ANIMALS = _words("""
badger otter heron beaver lynx mole hedgehog goose ram stag owl ferret bear rabbit donkey crow seal toad pony weasel
swan moth squirrel goat mouse tortoise fox lobster pelican camel
""")

COLOURS = _words("""
crimson teal ochre violet turquoise magenta olive maroon beige lavender cobalt scarlet emerald amber ivory charcoal
coral indigo mustard salmon navy plum rust mint
""")

TOWNS = _words("""
Marlow Elden Porthaven Brindle Castor Dunmore Easby Fallow Garrick Hollin Isley Jarrow Kelby Lorne Maddox Nairn Orford
Pelham Quorn Rathby Stanmore Tarn Ulver Varley Wexcombe Yelland Zennor Aldwick Brampton Corley Dorrance Elstow Frome
Gilsland Hathern Ingleby Jevington Knighton Langport Mossley Newbold Oldbury Pickering Radstock Saltash Thirsk Uldale
Ventnor Winslow Yeovil
""")

TIMES = _words("early late mid")

MONTHS = _words("January February March April May June July August September October November December")

INGREDIENTS = _words("""
lentil pumpkin barley mushroom salmon chicken spinach potato leek cabbage turnip carrot chestnut apple cheese onion
pea bean herring mutton rabbit beetroot fennel parsnip duck crab tomato celery plum ginger
""")

DISHES = _words("""
stew soup pie curry casserole salad dumplings pudding risotto omelette tart broth gratin chowder
""")

MATERIALS = _words("""
silver iron bronze oaken crystal copper ivory golden leaden porcelain amber pearl brass granite jade velvet
""")

OBJECTS = _words("""
anchor crown lantern key bell hammer arrow shield star wheel feather plough lamp tower rose acorn ladder compass harp
candle bridge needle oar thistle
""")

CRAFT_STYLES = _words("""
carved woven painted blown stitched forged polished gilded knotted glazed engraved braided hollow folded etched
printed
""")

CRAFTS = _words("""
clocks bowls carpets masks buttons chairs flutes globes kites lockets mirrors puppets quilts saddles toys vases
baskets boxes combs knives
""")

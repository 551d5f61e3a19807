package eval

import "strings"

// The words of keys and word lists (train/gen.py), all from the bundled model's training data, as
// pairs like "gentle-otter".

var adjectives = strings.Fields(`
red blue green yellow purple orange white black silver golden brown gray pink bright dark quiet loud gentle
fierce happy sad brave calm clever eager fancy grand humble jolly kind lively mighty noble proud rapid sharp
sleepy swift tender vivid warm wild wise young ancient bitter bold broad busy cold cool crisp curious deep dry
early empty exact fair famous fast fine firm fresh full giant glad good great hard heavy hidden high hollow
huge icy large late light little lonely long lost low lucky magic modern narrow new nice odd old open pale
plain polite poor public pure rare ready rich rough round royal rude safe salty secret short shy silent simple
slow small smooth soft solid sour square steady steep strong sunny sweet tall thick thin tiny tired tough
useful vast weak wet wide winter wooden
`)

var nouns = strings.Fields(`
otter fox wolf bear lion tiger eagle hawk raven robin sparrow swan goose duck owl crane whale shark dolphin
salmon trout crab horse pony sheep goat cow bull pig dog cat mouse rabbit squirrel badger deer moose camel
monkey panda koala zebra snake lizard turtle frog beetle spider bee ant river lake ocean island mountain
valley forest meadow desert canyon beach harbor bridge castle tower village city garden orchard farm field
road street market temple palace cottage cabin tent window door table chair lamp mirror clock carpet pillow
blanket basket bottle cup plate spoon knife fork hammer wrench ladder rope anchor sail boat ship train wagon
bicycle engine wheel rocket planet comet star moon sun cloud storm thunder rain snow wind fire flame candle
torch stone rock sand clay iron copper silver gold crystal diamond pearl ruby apple banana cherry grape lemon
melon olive peach pear plum berry bread butter cheese honey sugar pepper salt coffee tea milk soup rice corn
bean carrot onion potato tomato flower rose tulip daisy lily maple oak pine willow leaf seed root branch
feather shadow whisper music drum violin piano guitar flute trumpet song dance story letter paper pencil book
map flag crown sword shield arrow helmet mask ribbon button pocket jacket sweater scarf glove boot hat ring
bell key lock box doctor teacher farmer sailor painter writer singer dancer king queen prince baker miller
tailor hunter guard pilot captain wizard giant dragon
`)

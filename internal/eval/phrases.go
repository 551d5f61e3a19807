package eval

import "strings"

// The phrases of the tasks, exactly as in train/gen.py: RULER's questions (arXiv 2404.06654) on
// separate lines. {vt} is the kind of value, {k} a key, {v} a value.
const (
	noiseText = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"

	introNeedles = "Some special magic {vt}s are hidden within the following text. Make sure to memorize it. I will quiz you about the " +
		"{vt}s afterwards.\n"
	needleLine = "One of the special magic {vt}s for {k} is: {v}.\n"
	askOne     = "What is the special magic {vt} for {k} mentioned in the provided text?"
	leadOne    = " The special magic {vt} for {k} mentioned in the provided text is"
	askAll     = "What are all the special magic {vt}s for {k} mentioned in the provided text?"
	leadAll    = " The special magic {vt}s for {k} mentioned in the provided text are"

	introPasskey = "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. I will quiz you about the " +
		"important information there.\n"
	passkeyLine = "The pass key is {v}. Remember it. {v} is the pass key.\n"
	askPasskey  = "What is the pass key?"
	leadPasskey = " The pass key is"

	introPairs = "Extract the value corresponding to the specified key in the JSON data below.\n"
	askPair    = `What is the value of the key "{k}" in the JSON data?`
	leadPair   = ` The value associated with the key "{k}" is:`

	introTracking = "Memorize and track the chains of variable assignment hidden in the following text.\n"
	askTracking   = "Find all variables that are assigned the value {v} in the text above."
	leadTracking  = " According to the chain of variable assignment in the text above, the variables assigned the value {v} are:"

	introFrequent = "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared " +
		"coded words.\n"
	askFrequent  = "What are the three most frequently appeared words in the above coded text?"
	leadFrequent = " The three most frequently appeared words are:"

	// RULER's phrases; the bundled model was not trained on these.
	introCommon = "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that appear " +
		"most often.\n"
	askCommon  = "What are the 10 most common words in the above list?"
	leadCommon = " The top 10 words that appear most often in the list are:"
)

func fill(form, vt, k, v string) string {
	return strings.NewReplacer("{vt}", vt, "{k}", k, "{v}", v).Replace(form)
}

package toolcall

import "strings"

// Cohere's forms are JSON lists whose objects have tool_name and parameters. Command R7B and later models
// put a list between two control tokens, earlier ones into a code block after a word.
const (
	CohereOpen  = "<|START_ACTION|>"
	CohereEnd   = "<|END_ACTION|>"
	commandOpen = "Action:"
)

// HarmonyCall returns the texts between ForcedHead and the arguments of a call in gpt-oss's form.
func HarmonyCall(name string) []string {
	return []string{functionsPrefix + name + " ", harmonyConstrain, "json", harmonyMessage}
}

// ForcedHead returns the text that ends a prompt so that the answer must be a call. It returns "" for families
// whose calls do not begin with a control token. turn is the end of the prompt.
func ForcedHead(f Family, turn string) string {
	switch {
	case f == Harmony && strings.HasSuffix(turn, HarmonyTurn):
		return harmonyChannel + "commentary to="
	case f == Cohere:
		if inside, _ := cohereThought.Thought(turn); inside {
			return cohereThought.Close + CohereOpen
		}
		return CohereOpen
	}
	return ""
}

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/shoal-llm/shoal/internal/cli/ui"
)

// chatCommands are the commands of a chat. Each gets the text after its name, and returns the
// text to print.
var chatCommands = map[string]func(t *conversation, rest string) (string, error){
	"/clear": (*conversation).clear,
	"/reset": (*conversation).clear,
	"/set":   (*conversation).set,
	"/save":  (*conversation).save,
	"/load":  (*conversation).load,
	"/help":  func(*conversation, string) (string, error) { return chatHelp, nil },
	"/?":     func(*conversation, string) (string, error) { return chatHelp, nil },
}

// command runs a message that is a command. known reports whether it is one, and quit whether
// the chat must end.
func (t *conversation) command(text string) (known, quit bool) {
	name, rest, _ := strings.Cut(text, " ")
	if !strings.HasPrefix(name, "/") || strings.Contains(text, "\n") {
		return false, false
	}
	if name == "/exit" || name == "/bye" || name == "/quit" {
		return true, true
	}
	run := chatCommands[name]
	if run == nil {
		if rest != "" || strings.Count(name, "/") > 1 { // a message that begins with a path
			return false, false
		}
		fmt.Fprintf(t.e.Stdout, "there is no command %s; /help lists the commands\n", name)
		return true, false
	}
	text, err := run(t, strings.TrimSpace(rest))
	if err != nil {
		fmt.Fprintln(t.e.Stderr, "shoal:", err)
	} else if text != "" {
		fmt.Fprintln(t.e.Stdout, text)
	}
	return true, false
}

func (t *conversation) clear(string) (string, error) {
	t.turns = t.start()
	return "the conversation is empty", nil
}

// set prints or changes the settings of the next answers.
func (t *conversation) set(rest string) (string, error) {
	if rest == "" {
		return t.settings(), nil
	}
	name, value, _ := strings.Cut(rest, " ")
	value = strings.TrimSpace(value)
	var err error
	switch name {
	case "system":
		t.System = value
		if len(t.turns) > 0 && t.turns[0].Role == "system" {
			t.turns = t.turns[1:]
		}
		t.turns = append(t.start(), t.turns...)
	case "temperature":
		err = setFloat(&t.Temperature, value, 0, 2)
	case "top_p":
		err = setFloat(&t.TopP, value, 0, 1)
	case "seed":
		var n int64
		if n, err = strconv.ParseInt(value, 10, 64); err != nil && value != "" {
			return "", fmt.Errorf("/set seed %s: want a whole number", value)
		}
		if t.Seed, err = &n, nil; value == "" {
			t.Seed = nil
		}
	case "max_tokens":
		n, bad := strconv.Atoi(value)
		if value == "" {
			n, bad = defaultAnswer, nil
		}
		if bad != nil || n < 1 {
			return "", fmt.Errorf("/set max_tokens %s: want a number from 1 on", value)
		}
		t.MaxTokens = n
	case "kv_policy":
		t.Policy = value
	default:
		return "", fmt.Errorf("there is no setting %q: known are system, temperature, top_p, seed, max_tokens, kv_policy", name)
	}
	if err != nil {
		return "", fmt.Errorf("/set %s: %w", name, err)
	}
	return t.settings(), nil
}

// setFloat parses a number from lo to hi; "" restores the default.
func setFloat(to **float64, text string, lo, hi float64) error {
	if text == "" {
		*to = nil
		return nil
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || !(x >= lo && x <= hi) {
		return fmt.Errorf("%q is not a number from %v to %v", text, lo, hi)
	}
	*to = &x
	return nil
}

// settings returns the settings of the next answers as text.
func (t *conversation) settings() string {
	number := func(x *float64) string {
		if x == nil {
			return "the model's"
		}
		return strconv.FormatFloat(*x, 'g', -1, 64)
	}
	seed, system, policy := "random", "none", "the server's"
	if t.Seed != nil {
		seed = strconv.FormatInt(*t.Seed, 10)
	}
	if t.System != "" {
		system = t.System
	}
	if t.Policy != "" {
		policy = t.Policy
	}
	return fmt.Sprintf("system %s\ntemperature %s\ntop_p %s\nseed %s\nmax_tokens %d\nkv_policy %s", system, number(t.Temperature),
		number(t.TopP), seed, t.MaxTokens, policy)
}

// save writes the conversation to a new file that only its owner can read.
func (t *conversation) save(file string) (string, error) {
	if file == "" {
		return "", errors.New("/save: name a file, as in /save talk.json")
	}
	text, err := json.MarshalIndent(t.turns, "", "  ")
	if err != nil {
		return "", err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return "", fmt.Errorf("/save: %s exists: name another file, or remove it first", file)
	}
	if err != nil {
		return "", fmt.Errorf("/save: %w", err)
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("/save: %w", err)
	}
	return fmt.Sprintf("%s saved in %s", ui.Plural(len(t.turns), "message"), file), nil
}

// load continues a saved conversation.
func (t *conversation) load(file string) (string, error) {
	if file == "" {
		return "", errors.New("/load: name a file, as in /load talk.json")
	}
	text, err := ui.ReadSmall(file)
	if err != nil {
		return "", fmt.Errorf("/load: %w", err)
	}
	var turns []turn
	if err := json.Unmarshal(text, &turns); err != nil {
		return "", fmt.Errorf("/load %s: want a file that /save has written: %w", file, err)
	}
	for i, x := range turns {
		if x.Role != "user" && x.Role != "assistant" && !(x.Role == "system" && i == 0) {
			return "", fmt.Errorf("/load %s: message %d has the role %q: want user or assistant, or system for the first one", file, i+1, x.Role)
		}
	}
	t.turns, t.System = turns, ""
	if len(turns) > 0 && turns[0].Role == "system" {
		t.System = turns[0].Content
	}
	return fmt.Sprintf("%s loaded from %s", ui.Plural(len(turns), "message"), file), nil
}

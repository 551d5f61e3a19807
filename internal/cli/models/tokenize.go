package models

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/text/tokenizer"
)

// TokenizeCmd is the command tokenize.
type TokenizeCmd struct {
	ModelFlag
	Text      []string `arg:"" optional:"" help:"Text to tokenize; - reads standard input (default: standard input)."`
	NoSpecial bool     `help:"Omit the special tokens that the tokenizer adds."`
	JSON      bool     `name:"json" help:"Print IDs and tokens as JSON."`
}

func (c *TokenizeCmd) Help() string {
	return `Prints the number and the text of every token.

  shoal tokenize "func main() {"
  shoal tokenize --json < main.go`
}

func (c *TokenizeCmd) Run(e *ui.Env) error {
	dir, err := c.Dir(e)
	if err != nil {
		return err
	}
	t, err := tokenizer.Load(dir)
	if err != nil {
		return err
	}
	text := strings.Join(c.Text, " ")
	if len(c.Text) == 0 || text == "-" {
		b, err := io.ReadAll(e.Stdin)
		if err != nil {
			return err
		}
		text = string(b)
	}
	ids, err := t.TryEncode(e.Ctx, []tokenizer.Part{{Text: text}}, !c.NoSpecial)
	if err != nil {
		return err
	}
	if c.JSON {
		tokens := make([]string, len(ids))
		for i, id := range ids {
			tokens[i] = t.Token(id)
		}
		return json.NewEncoder(e.Stdout).Encode(map[string]any{"ids": ids, "tokens": tokens, "count": len(ids)})
	}
	for _, id := range ids {
		fmt.Fprintf(e.Stdout, "%7d  %q\n", id, t.Token(id))
	}
	fmt.Fprintf(e.Stdout, "%d tokens\n", len(ids))
	return nil
}

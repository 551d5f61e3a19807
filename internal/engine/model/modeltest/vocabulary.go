package modeltest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Vocabulary writes the byte-level tokenizer of a folder into the metadata, as
// llama.cpp's converter does: tokens by id, control tokens marked, merges, and
// the chat template. pre names the split pattern.
func (g *GGUF) Vocabulary(dir, pre string) error {
	var tok struct {
		Model struct {
			Vocab  map[string]int  `json:"vocab"`
			Merges json.RawMessage `json:"merges"`
		} `json:"model"`
		Added []struct {
			ID      int    `json:"id"`
			Content string `json:"content"`
			Special bool   `json:"special"`
		} `json:"added_tokens"`
	}
	var config struct {
		BOS      string `json:"bos_token"`
		EOS      string `json:"eos_token"`
		PAD      string `json:"pad_token"`
		AddBOS   *bool  `json:"add_bos_token"`
		Template string `json:"chat_template"`
	}
	for name, to := range map[string]any{"tokenizer.json": &tok, "tokenizer_config.json": &config} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if err := json.Unmarshal(data, to); err != nil {
			return fmt.Errorf("modeltest: %s: %w", name, err)
		}
	}
	var merges []string
	if json.Unmarshal(tok.Model.Merges, &merges) != nil {
		var pairs [][]string
		if err := json.Unmarshal(tok.Model.Merges, &pairs); err != nil {
			return err
		}
		merges = nil
		for _, p := range pairs {
			merges = append(merges, strings.Join(p, " "))
		}
	}
	n := len(tok.Model.Vocab)
	for _, a := range tok.Added {
		n = max(n, a.ID+1)
	}
	tokens, kinds, ids := make([]string, n), make([]int32, n), map[string]int{}
	for i := range n {
		tokens[i], kinds[i] = fmt.Sprintf("[PAD%d]", i), 5
	}
	for s, id := range tok.Model.Vocab {
		tokens[id], kinds[id], ids[s] = s, 1, id
	}
	for _, a := range tok.Added {
		tokens[a.ID], kinds[a.ID], ids[a.Content] = a.Content, 4, a.ID
		if a.Special {
			kinds[a.ID] = 3
		}
	}
	const p = "tokenizer.ggml."
	g.Set(p+"model", "gpt2")
	g.Set(p+"pre", pre)
	g.Set(p+"tokens", tokens)
	g.Set(p+"token_type", kinds)
	g.Set(p+"merges", merges)
	for key, token := range map[string]string{"bos_token_id": config.BOS, "eos_token_id": config.EOS, "padding_token_id": config.PAD} {
		if id, ok := ids[token]; ok {
			g.Unset(p + key)
			g.Set(p+key, id)
		}
	}
	if config.AddBOS != nil {
		g.Set(p+"add_bos_token", *config.AddBOS)
	}
	if config.Template != "" {
		g.Set("tokenizer.chat_template", config.Template)
	}
	return nil
}

package lab

import (
	"cmp"
	"fmt"

	"github.com/shoal-llm/shoal/internal/eval"
	"github.com/shoal-llm/shoal/internal/eval/suite"
)

// tablePart is one part of a table with everything that it asks.
type tablePart struct {
	eval.TablePart
	label     string           // of its progress bar
	suite     *suite.Suite     // of a part with published files
	questions []suite.Question // of these
	generated eval.Config      // of eval.GeneratedRuler, without policies
	text      string           // of eval.Perplexities
}

// parts reads the files of all parts and checks their lengths, so that a wrong flag fails before hours of
// measuring.
func (c *evalTableCmd) parts(t *eval.Table) (out []tablePart, err error) {
	perplexities := t.Parts[0].Suite == eval.Perplexities
	switch {
	case perplexities && (c.Data != "" || c.Server != ""):
		return nil, fmt.Errorf("table %s measures the text of --text in this process: remove --data and --server", t.Name)
	case !perplexities && c.Text != "":
		return nil, fmt.Errorf("table %s measures no perplexity: remove --text", t.Name)
	}
	for _, p := range t.Parts {
		part := tablePart{TablePart: p}
		switch p.Suite {
		case eval.Perplexities:
			part.text = eval.OwnCorpus().English
			if c.Text != "" {
				part.text, err = readText(c.Text)
			}
		case eval.GeneratedRuler:
			part.generated = eval.Config{Lengths: []int{c.Length}, Samples: cmp.Or(c.Limit, 100), Concurrency: c.Concurrency}
			for _, column := range p.Columns {
				part.generated.Tasks = append(part.generated.Tasks, column.Tasks...)
			}
			err = part.generated.Validate()
		default:
			if part.suite, err = suite.Find(p.Suite); err == nil {
				part.questions, err = loadSuite(part.suite, c.Data, part.suite.Name, p.Tasks, c.Limit)
			}
		}
		if err != nil {
			return nil, err
		}
		out = append(out, part)
	}
	return out, nil
}

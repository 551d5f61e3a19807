package cli

import (
	"fmt"
	"net/http"

	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/options"
)

type cacheCmd struct {
	timeoutFlags
	Empty bool `help:"Remove all prefixes from memory and disk. Running sequences keep their caches."`
	JSON  bool `name:"json" help:"Print the prefix_cache member of /v1/cluster as JSON."`
}

func (c *cacheCmd) Run(e *ui.Env) error {
	ctx, cancel := c.withTimeout(e.Ctx)
	defer cancel()
	if c.Empty {
		resp, err := c.Client().Do(ctx, http.MethodPost, "/reset_prefix_cache", nil)
		if err != nil {
			return err
		}
		fmt.Fprintln(e.Stdout, "the prefix cache is empty")
		return resp.Body.Close()
	}
	s, err := c.Client().Cluster(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return ui.PrintJSON(e.Stdout, s.PrefixCache)
	}
	p := s.PrefixCache
	if p == nil {
		fmt.Fprintln(e.Stdout, "the prefix cache is off: start the server without --prefix-cache=off")
		return nil
	}
	share := 0.0
	if p.Queries > 0 {
		share = 100 * float64(p.Hits) / float64(p.Queries)
	}
	bytes := int64(0)
	for _, n := range s.Nodes {
		bytes += n.KVPrefix
	}
	fmt.Fprintf(e.Stdout,
		"prefix cache %s: %d tokens in %s of otherwise unused memory, %d evicted\n%d of %d prompt tokens were found (%.1f%%); %d tokens of "+
			"answers are cached for later turns\n",
		p.Mode, p.Tokens, options.SizeText(bytes), p.Evicted, p.Hits, p.Queries, share, p.Answers)
	if d := p.Disk; d != nil {
		fmt.Fprintf(e.Stdout, "on disk: %s of %s in %d blocks; %d tokens were read from disk\n", options.SizeText(d.Bytes),
			options.SizeText(d.Limit), d.Blocks, d.Restored)
		if d.Dropped+d.Damaged+d.Failed+d.Late > 0 {
			fmt.Fprintf(e.Stdout,
				"disk problems: %d blocks not written in time, %d blocks damaged, %d failures, %d reads abandoned because they were slow\n",
				d.Dropped, d.Damaged, d.Failed, d.Late)
		}
	}
	return nil
}

package files

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/server/generate"
)

// forContexts is the purpose of files that hold contexts. The file routes hide them, because a
// context belongs to one API key.
const forContexts = "context"

// Contexts stores fixed contexts as files.
type Contexts struct{ Store Store }

var _ generate.ContextStore = Contexts{}

func contextFile(tenant, name string) string {
	sum := sha256.Sum256([]byte(tenant + "\x00" + name))
	return "context-" + hex.EncodeToString(sum[:16])
}

// SaveContext implements generate.ContextStore.
func (c Contexts) SaveContext(ctx context.Context, k generate.SavedContext) error {
	b, err := json.Marshal(k)
	if err == nil {
		_, err = c.Store.Put(ctx, File{ID: contextFile(k.Tenant, k.Name), Filename: k.Name, Purpose: forContexts, CreatedAt: k.Created},
			bytes.NewReader(b))
	}
	if err != nil {
		return fileProblem(err)
	}
	return nil
}

// SavedContexts implements generate.ContextStore. It returns the readable contexts even if the error
// reports unreadable ones.
func (c Contexts) SavedContexts(ctx context.Context) (all []generate.SavedContext, err error) {
	list, err := c.Store.List(ctx)
	for _, f := range list {
		if f.Purpose != forContexts {
			continue
		}
		k, bad := c.read(ctx, f.ID)
		if bad != nil {
			err = errors.Join(err, fmt.Errorf("context %s: %w", f.Filename, bad))
			continue
		}
		all = append(all, k)
	}
	return all, err
}

func (c Contexts) read(ctx context.Context, id string) (k generate.SavedContext, err error) {
	file, _, err := c.Store.Open(ctx, id)
	if err != nil {
		return k, err
	}
	defer file.Close()
	if err := json.NewDecoder(file).Decode(&k); err != nil {
		return k, fmt.Errorf("%w: %v", journal.ErrDamaged, err)
	}
	if contextFile(k.Tenant, k.Name) != id {
		return k, fmt.Errorf("%w: it belongs to another key", journal.ErrDamaged)
	}
	return k, nil
}

// DropContext implements generate.ContextStore.
func (c Contexts) DropContext(ctx context.Context, tenant, name string) error {
	if err := c.Store.Delete(ctx, contextFile(tenant, name)); err != nil && !errors.Is(err, ErrNotFound) {
		return fileProblem(err)
	}
	return nil
}

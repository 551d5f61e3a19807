package files

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shoal-llm/shoal/internal/jobs/journal"
	"github.com/shoal-llm/shoal/internal/server/generate"
)

// forContexts is the purpose of files that hold contexts. The file routes hide them, because a
// context belongs to one API key.
const forContexts = "context"

// Contexts stores fixed contexts as files.
type Contexts struct{ Store Store }

var _ generate.ContextStore = Contexts{}

// contextFile returns the file of a context. Each model has its own, which another model with the same data directory does
// not replace.
func contextFile(tenant, name, fingerprint string) string {
	return contextID(tenant + "\x00" + name + "\x00" + modelOf(fingerprint))
}

// sharedContextFile returns the file of a context that an earlier version has written, for whichever model.
func sharedContextFile(tenant, name string) string { return contextID(tenant + "\x00" + name) }

func contextID(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "context-" + hex.EncodeToString(sum[:16])
}

// modelOf returns the fingerprint of a model without that of an adapter, which may be away when the context is dropped.
func modelOf(fingerprint string) string {
	model, _, _ := strings.Cut(fingerprint, "-lora-")
	return model
}

// maxOfName is how many contexts of one name are kept, each of another model or other settings.
const maxOfName = 8

// SaveContext implements generate.ContextStore.
func (c Contexts) SaveContext(ctx context.Context, k generate.SavedContext) error {
	b, err := json.Marshal(k)
	id := contextFile(k.Tenant, k.Name, k.Fingerprint)
	if err == nil {
		_, err = c.Store.Put(ctx, File{ID: id, Filename: k.Name, Purpose: forContexts, CreatedAt: k.Created}, bytes.NewReader(b))
	}
	if err == nil {
		err = c.dropShared(ctx, k.Tenant, k.Name, k.Fingerprint)
	}
	if err != nil {
		return fileProblem(err)
	}
	c.dropOldest(ctx, k.Tenant, k.Name, id)
	return nil
}

// dropOldest drops the oldest contexts of a name beyond maxOfName, except id. It leaves them to the next call if it
// fails: the list needs the records of all files, and one of them may be damaged.
func (c Contexts) dropOldest(ctx context.Context, tenant, name, id string) {
	list, err := c.Store.List(ctx)
	if err != nil {
		return
	}
	list = slices.DeleteFunc(slices.Clone(list), func(f File) bool {
		if f.Purpose != forContexts || f.Filename != name || f.ID == id {
			return true
		}
		k, err := c.read(ctx, f.ID)
		return err != nil || k.Tenant != tenant
	})
	slices.SortFunc(list, func(a, b File) int { return cmp.Compare(b.CreatedAt, a.CreatedAt) })
	for _, f := range list[min(len(list), maxOfName-1):] {
		_ = c.Store.Delete(ctx, f.ID)
	}
}

// dropShared drops a context that an earlier version has written, if it is of this model.
func (c Contexts) dropShared(ctx context.Context, tenant, name, fingerprint string) error {
	id := sharedContextFile(tenant, name)
	k, err := c.read(ctx, id)
	switch {
	case errors.Is(err, ErrNotFound), err == nil && modelOf(k.Fingerprint) != modelOf(fingerprint):
		return nil
	case err != nil && !errors.Is(err, journal.ErrDamaged):
		return err
	}
	if err := c.Store.Delete(ctx, id); err != nil && !errors.Is(err, ErrNotFound) {
		return err
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
	if id != contextFile(k.Tenant, k.Name, k.Fingerprint) && id != sharedContextFile(k.Tenant, k.Name) {
		return k, fmt.Errorf("%w: it belongs to another key", journal.ErrDamaged)
	}
	return k, nil
}

// DropContext implements generate.ContextStore.
func (c Contexts) DropContext(ctx context.Context, tenant, name, fingerprint string) error {
	err := c.Store.Delete(ctx, contextFile(tenant, name, fingerprint))
	if err == nil || errors.Is(err, ErrNotFound) {
		err = c.dropShared(ctx, tenant, name, fingerprint)
	}
	if err != nil {
		return fileProblem(err)
	}
	return nil
}

package launch

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/security"
)

// KeygenCmd is the command keygen.
type KeygenCmd struct {
	Out string `short:"o" type:"path" placeholder:"FILE" help:"File to write the key to, with mode 0600 (default: standard output)."`
}

func (c *KeygenCmd) Help() string {
	return "Give the same key to the coordinator and to every node: --cluster-key FILE, or the environment variable SHOAL_CLUSTER_KEY. " +
		"`shoal up` generates a key of its own. It needs this one only if other nodes must join it."
}

func (c *KeygenCmd) Run(e *ui.Env) error {
	k := security.NewKey()
	if c.Out != "" {
		if err := security.WriteKeyFile(c.Out, k); err != nil {
			if errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("%w: a key is never overwritten, since running processes may use it; choose another file, or remove this one first",
					err)
			}
			return err
		}
		fmt.Fprintln(e.Stderr, "wrote", c.Out)
		return nil
	}
	fmt.Fprintln(e.Stdout, k.Text())
	return nil
}

// keyFlags give a process the key of its cluster.
type keyFlags struct {
	ClusterKeyFlag
	KeyFD int `name:"cluster-key-fd" hidden:"" help:"File descriptor from which to read the key that the parent wrote."`
}

// ClusterKeyFlag names the file of the cluster key.
type ClusterKeyFlag struct {
	ClusterKeyFile string `name:"cluster-key" type:"path" placeholder:"FILE" env:"SHOAL_CLUSTER_KEY_FILE" help:"File with a cluster key from shoal keygen. SHOAL_CLUSTER_KEY can hold the key itself instead."`
}

// Key reads the cluster key from the file, or from SHOAL_CLUSTER_KEY.
func (f ClusterKeyFlag) Key() (security.Key, error) { return security.LoadKey(f.ClusterKeyFile) }

// keyOrNew returns the cluster key of the flags, or a new key if they set none.
func (f ClusterKeyFlag) keyOrNew() (security.Key, error) {
	k, err := f.Key()
	if err == nil && k.IsZero() {
		k = security.NewKey()
	}
	return k, err
}

func (f keyFlags) key(insecure bool) (security.Key, error) {
	if f.KeyFD != 0 {
		return security.ReadKeyPipe(f.KeyFD)
	}
	k, err := f.ClusterKeyFlag.Key()
	if err == nil && !k.IsZero() && insecure {
		err = errors.New("--insecure excludes a cluster key: remove one of them")
	}
	return k, err
}

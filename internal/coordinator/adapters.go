package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/shoal-llm/shoal/actors/batcher/adapters"
	"github.com/shoal-llm/shoal/internal/engine/lora"
	"github.com/shoal-llm/shoal/internal/node"
	"github.com/shoal-llm/shoal/internal/proto"
)

const (
	adapterPart  = 512 << 10        // bytes of a file in one message
	adapterReply = 30 * time.Second // for one message
	adapterLoad  = 5 * time.Minute  // for packing a whole adapter
)

// LoadAdapter has every node of the group load a LoRA adapter, and drop those that do not stay. It sends
// the files in a folder to nodes that lack them.
func (g *Group) LoadAdapter(ctx context.Context, l adapters.Load, folder string) error {
	r := &proto.AdapterRequest{Epoch: g.Placement.Epoch, Id: l.ID.Bytes(), Number: l.Number, Load: true}
	for _, id := range l.Keep {
		r.Keep = append(r.Keep, id.Bytes())
	}
	return errors.Join(fromAll(g.Handles, func(i int, h node.Handle) error {
		if err := loadOn(ctx, h, r, folder); err != nil {
			return fmt.Errorf("node %s: %w", g.Nodes[i].ID, err)
		}
		return nil
	})...)
}

func loadOn(ctx context.Context, h node.Handle, r *proto.AdapterRequest, folder string) error {
	for sent := false; ; sent = true {
		once, cancel := context.WithTimeout(ctx, adapterLoad)
		reply, err := h.Adapter(once, r)
		cancel()
		switch {
		case err != nil:
			return err
		case !reply.Missing:
			return nil
		case sent:
			return errors.New("coordinator: the node lost the files of an adapter that were sent to it")
		}
		for _, name := range lora.Files() {
			if err := sendFile(ctx, h, r.Id, folder, name); err != nil {
				return err
			}
		}
	}
}

// sendFile sends a file of an adapter in parts.
func sendFile(ctx context.Context, h node.Handle, id []byte, folder, name string) error {
	f, err := os.Open(filepath.Join(folder, name))
	if err != nil {
		return fmt.Errorf("coordinator: %w", err)
	}
	defer f.Close()
	for offset := int64(0); ; {
		data := make([]byte, adapterPart)
		n, err := io.ReadFull(f, data)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("coordinator: %w", err)
		}
		if n == 0 {
			return nil
		}
		once, cancel := context.WithTimeout(ctx, adapterReply)
		_, sent := h.Adapter(once, &proto.AdapterRequest{Id: id, File: name, Offset: offset, Data: data[:n]})
		cancel()
		if sent != nil {
			return sent
		}
		offset += int64(n)
	}
}

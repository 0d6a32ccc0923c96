package main

import (
	"encoding/json"
	"os"
	"sync"
	"testing"

	"github.com/pulumi/pulumi/sdk/v3/go/common/resource"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
)

// recorder records what a program creates.
type recorder struct {
	mu      sync.Mutex
	objects []map[string]any
}

func (r *recorder) NewResource(args pulumi.MockResourceArgs) (string, resource.PropertyMap, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.objects = append(r.objects, args.Inputs.MapRepl(nil, func(value resource.PropertyValue) (any, bool) {
		if value.IsSecret() {
			return "[secret]", true
		}
		return nil, false
	}))
	return args.Name, args.Inputs, nil
}

func (r *recorder) Call(pulumi.MockCallArgs) (resource.PropertyMap, error) { return nil, nil }

func TestRecord(t *testing.T) {
	r := &recorder{}
	if err := pulumi.RunErr(program, pulumi.WithMocks("stacks", "dev", r)); err != nil {
		t.Fatal(err)
	}
	content, err := json.Marshal(r.objects)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(os.Getenv("RECORDED"), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/cmd/flux-pulumi/print"
	"github.com/stack-controller/stack-controller/internal/urn"
)

// maxState bounds the state that is read to show its resources, in bytes.
const maxState = 256 << 20

// addResources adds the resources in the state of the Stack, each below its parent.
func (c *cluster) addResources(ctx context.Context, stack *pulumiv1.Stack, node *print.Node) error {
	content := &bounded{limit: maxState}
	if err := c.pulumi(ctx, stack, nil, content, "stack", "export"); err != nil {
		return err
	}
	var state struct {
		Deployment struct {
			Resources []stateResource `json:"resources"`
		} `json:"deployment"`
	}
	if err := json.Unmarshal(content.Bytes(), &state); err != nil {
		return fmt.Errorf("read the state of %s: %w", stack.Spec.Stack, err)
	}
	addResources(state.Deployment.Resources, node)
	return nil
}

// stateResource is the part of a resource in a state that a tree shows.
type stateResource struct {
	URN    string `json:"urn"`
	Parent string `json:"parent"`
	// Delete is true for a resource that was replaced and could not be deleted yet.
	Delete bool `json:"delete"`
}

// addResources adds the resources, each below its parent. A state lists parents first.
func addResources(resources []stateResource, node *print.Node) {
	nodes := map[string]*print.Node{}
	for _, resource := range resources {
		parent := nodes[resource.Parent]
		if parent == nil {
			parent = node
		}
		status := print.Cell{}
		if resource.Delete {
			status = print.Cell{Text: "to be deleted", Style: print.Busy}
		}
		added := parent.Add(fmt.Sprintf("%s %s", urn.Type(resource.URN), urn.Name(resource.URN)), status)
		if !resource.Delete {
			nodes[resource.URN] = added
		}
	}
}

// bounded keeps what is written to it, up to a limit in bytes.
type bounded struct {
	limit int
	bytes.Buffer
}

func (b *bounded) Write(content []byte) (int, error) {
	if b.Len()+len(content) > b.limit {
		return 0, errors.New("the state is too large to be shown")
	}
	return b.Buffer.Write(content)
}

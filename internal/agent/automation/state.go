package automation

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/stack-controller/stack-controller/internal/agent/proto"
)

// exportTimeout bounds `pulumi stack export`: the state may be large and far away.
const exportTimeout = 10 * time.Minute

// Kinds of secrets providers, as the state names them.
const (
	kindPassphrase = "passphrase"
	// kindService is a key management service.
	kindService = "cloud"
	// kindCloudBackend is Pulumi Cloud itself.
	kindCloudBackend = "service"
)

// stateFacts is what we need to know of a stack's state.
type stateFacts struct {
	crypto cryptoSettings
	// cryptoKind is the kind of secrets provider; empty when the state names none.
	cryptoKind string
	// resources is how many there are, with providers and the stack itself.
	resources int
	// pendingCreates are the URNs of resources whose creation was cut off: they may exist, and nobody knows their IDs.
	pendingCreates []string
	// pendingOthers describe other operations on resources that were cut off. Pulumi forgets them with the next update.
	pendingOthers []string
}

// exportedState is what an export of the state told.
type exportedState struct {
	facts  stateFacts
	exists bool
}

// knownState is exportState, once for the preparation of an operation.
func (o *operation) knownState(ctx context.Context) (facts stateFacts, exists bool, err error) {
	if o.exported == nil {
		facts, exists, err := o.exportState(ctx)
		if err != nil {
			return facts, false, err
		}
		o.exported = &exportedState{facts: facts, exists: exists}
	}
	return o.exported.facts, o.exported.exists, nil
}

// exportState reads what matters of the stack's state. It tells whether the stack exists.
func (o *operation) exportState(ctx context.Context) (facts stateFacts, exists bool, err error) {
	path := filepath.Join(o.stack.dir, "state.json")
	defer os.Remove(path)
	res, err := o.helper(ctx, exportTimeout, invocation{args: []string{"stack", "export", "--stack", o.stack.name, "--file", path}})
	if err != nil {
		return facts, false, err
	}
	if res.code != 0 {
		f := classify(res, &summary{})
		if f.reason == proto.FailureReason_FAILURE_REASON_STACK_NOT_FOUND {
			return facts, false, nil
		}
		return facts, false, f
	}
	facts, err = readStateFacts(path)
	return facts, true, err
}

// readStateFacts reads an exported state as a stream: a state can be much larger than what matters here.
func readStateFacts(path string) (stateFacts, error) {
	file, err := os.Open(path)
	if err != nil {
		return stateFacts{}, fmt.Errorf("read the exported state: %w", err)
	}
	defer file.Close()
	var facts stateFacts
	decoder := json.NewDecoder(file)
	err = eachMember(decoder, func(key string) error {
		if key != "deployment" {
			return skipValue(decoder)
		}
		return eachMember(decoder, func(key string) error { return facts.readMember(decoder, key) })
	})
	if err != nil {
		return stateFacts{}, fmt.Errorf("read the exported state: %w", err)
	}
	return facts, nil
}

// readMember reads one member of the deployment.
func (f *stateFacts) readMember(decoder *json.Decoder, key string) error {
	switch key {
	case "resources":
		return eachItem(decoder, func() error {
			f.resources++
			return skipValue(decoder)
		})
	case "secrets_providers":
		var provider struct {
			Type  string `json:"type"`
			State struct {
				Salt         string `json:"salt"`
				URL          string `json:"url"`
				EncryptedKey string `json:"encryptedkey"`
			} `json:"state"`
		}
		if err := decoder.Decode(&provider); err != nil {
			return err
		}
		f.cryptoKind = provider.Type
		switch provider.Type {
		case kindPassphrase:
			f.crypto.EncryptionSalt = provider.State.Salt
		case kindService:
			f.crypto.SecretsProvider, f.crypto.EncryptedKey = provider.State.URL, provider.State.EncryptedKey
		}
		return nil
	case "pending_operations":
		var operations []struct {
			Type     string `json:"type"`
			Resource struct {
				URN string `json:"urn"`
			} `json:"resource"`
		}
		if err := decoder.Decode(&operations); err != nil {
			return err
		}
		for _, operation := range operations {
			urn := operation.Resource.URN
			switch operation.Type {
			case "creating":
				f.pendingCreates = append(f.pendingCreates, urn)
			case "updating", "deleting":
				f.pendingOthers = append(f.pendingOthers, operation.Type+" "+resourceType(urn)+" "+resourceName(urn))
			}
		}
		return nil
	}
	return skipValue(decoder)
}

// eachMember calls visit with each key of the object that comes next; visit reads the value. null counts as empty.
func eachMember(decoder *json.Decoder, visit func(key string) error) error {
	return each(decoder, '{', func() error {
		key, err := decoder.Token()
		if err != nil {
			return err
		}
		return visit(key.(string))
	})
}

// eachItem calls visit for each item of the array that comes next; visit reads the item. null counts as empty.
func eachItem(decoder *json.Decoder, visit func() error) error {
	return each(decoder, '[', visit)
}

// each reads what comes next, from the delimiter that opens it to the one that closes it.
func each(decoder *json.Decoder, opening json.Delim, visit func() error) error {
	token, err := decoder.Token()
	if err != nil || token == nil {
		return err
	}
	if token != opening {
		return fmt.Errorf("unexpected %v", token)
	}
	for decoder.More() {
		if err := visit(); err != nil {
			return err
		}
	}
	_, err = decoder.Token()
	return err
}

// skipValue reads over the value that comes next, piece by piece.
func skipValue(decoder *json.Decoder) error {
	depth := 0
	for {
		token, err := decoder.Token()
		if err == io.EOF {
			return io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
		if depth == 0 {
			return nil
		}
	}
}

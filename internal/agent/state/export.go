package state

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/stack-controller/stack-controller/internal/agent/config"
	"github.com/stack-controller/stack-controller/internal/urn"
)

// Facts are the parts of a stack's state that the agent needs.
type Facts struct {
	// Exists says that there is such a stack.
	Exists bool
	// Settings are how the secrets of the stack are encrypted. Kind is the kind of its secrets provider; empty if the state names none.
	Settings config.Settings
	Kind     string
	// Resources is the number of resources, including providers and the stack itself.
	Resources int
	// PendingCreates are the URNs of resources whose creation was cut off: they may exist, and nobody knows their IDs.
	PendingCreates []string
	// PendingOthers describe other operations on resources that were cut off. Pulumi forgets them with the next update.
	PendingOthers []string
	// Dynamic says that some resources have a dynamic provider, see IsDynamic.
	Dynamic bool
}

// IsDynamic reports whether a resource of the type belongs to a dynamic provider. Its code is in the state, but Pulumi runs it with the packages
// that are installed for the program.
func IsDynamic(kind string) bool {
	for _, language := range []string{"pulumi-nodejs", "pulumi-python"} {
		if kind == "pulumi:providers:"+language || strings.HasPrefix(kind, language+":dynamic") {
			return true
		}
	}
	return false
}

// ReadFacts reads an exported state as a stream, because a state can be much larger than the facts. The types of the SDK's apitype would
// hold all of it in memory.
func ReadFacts(path string) (*Facts, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the exported state: %w", err)
	}
	defer file.Close()
	facts := &Facts{Exists: true}
	decoder := json.NewDecoder(file)
	err = eachMember(decoder, func(key string) error {
		if key != "deployment" {
			return skipValue(decoder)
		}
		return eachMember(decoder, func(key string) error { return facts.readMember(decoder, key) })
	})
	if err != nil {
		return nil, fmt.Errorf("read the exported state: %w", err)
	}
	return facts, nil
}

// readMember reads one member of the deployment.
func (f *Facts) readMember(decoder *json.Decoder, key string) error {
	switch key {
	case "resources":
		return each(decoder, '[', func() error {
			f.Resources++
			return eachMember(decoder, func(key string) error {
				if key != "type" {
					return skipValue(decoder)
				}
				var kind string
				err := decoder.Decode(&kind)
				f.Dynamic = f.Dynamic || IsDynamic(kind)
				return err
			})
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
		f.Kind = provider.Type
		switch provider.Type {
		case config.KindPassphrase:
			f.Settings.EncryptionSalt = provider.State.Salt
		case config.KindKeyManagement:
			f.Settings.SecretsProvider, f.Settings.EncryptedKey = provider.State.URL, provider.State.EncryptedKey
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
			named := operation.Resource.URN
			switch operation.Type {
			case "creating":
				f.PendingCreates = append(f.PendingCreates, named)
			case "updating", "deleting":
				f.PendingOthers = append(f.PendingOthers, operation.Type+" "+urn.Type(named)+" "+urn.Name(named))
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

// each calls visit for each item of the array or object that comes next, and that has the opening delimiter; visit reads the item. null
// counts as empty.
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

// skipValue skips the value that comes next. It holds one value, for example one resource, in memory.
func skipValue(decoder *json.Decoder) error {
	var skipped json.RawMessage
	return decoder.Decode(&skipped)
}

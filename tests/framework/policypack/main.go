// Command policypack is a small but real policy pack for Pulumi. No resource may have a property "content" that contains "bad". The message
// of a violation has the content, in its second line.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/blang/semver"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi/policyx"
)

func main() {
	if err := policyx.Main(newPack); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func newPack(*pulumi.Context) (policyx.PolicyPack, error) {
	noBad := policyx.NewResourceValidationPolicy("no-bad", policyx.ResourceValidationPolicyArgs{
		Description: "no resource may have bad content", EnforcementLevel: policyx.EnforcementLevelMandatory,
		ValidateResource: func(_ context.Context, args policyx.ResourceValidationArgs) error {
			if content, set := args.Resource.Properties.GetOk("content"); set && content.IsString() && strings.Contains(content.AsString(), "bad") {
				args.Manager.ReportViolation("the content is "+content.AsString(), "")
			}
			return nil
		},
	})
	return policyx.NewPolicyPack("testpack", semver.MustParse("1.2.3"), policyx.EnforcementLevelMandatory, []policyx.Policy{noBad})
}

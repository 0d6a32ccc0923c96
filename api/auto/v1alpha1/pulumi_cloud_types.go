package v1alpha1

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PulumiCloud says how operations log in to Pulumi Cloud.
type PulumiCloud struct {
	// OIDC logs in with a token of the pod's ServiceAccount.
	// +required
	OIDC PulumiCloudOIDC `json:"oidc"`
}

// PulumiCloudOIDC is a login with a token of the ServiceAccount. Pulumi Cloud exchanges it for an access token, once for each operation.
// Without team and user that is a token of the organization.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.team) && has(self.user))",message="set either team or user, not both"
type PulumiCloudOIDC struct {
	// Organization of Pulumi Cloud that trusts the cluster.
	// +kubebuilder:validation:Pattern="^[A-Za-z0-9][A-Za-z0-9_.-]*$"
	// +kubebuilder:validation:MaxLength=100
	// +required
	Organization string `json:"organization"`

	// Team whose token is wanted.
	// +kubebuilder:validation:Pattern="^[A-Za-z0-9][A-Za-z0-9_.-]*$"
	// +kubebuilder:validation:MaxLength=100
	// +optional
	Team string `json:"team,omitempty"`

	// User whose personal token is wanted.
	// +kubebuilder:validation:Pattern="^[A-Za-z0-9][A-Za-z0-9_.-]*$"
	// +kubebuilder:validation:MaxLength=100
	// +optional
	User string `json:"user,omitempty"`

	// Expiration is how long the access token is valid. Defaults to the timeout of the operation and 15m, at least 1h.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern="^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m')",message="expiration must be a duration such as 2h, and at least 1m"
	// +optional
	Expiration *metav1.Duration `json:"expiration,omitempty"`
}

const (
	// PulumiCloudTokenDir is the directory of the pod with the token of the ServiceAccount for Pulumi Cloud.
	PulumiCloudTokenDir = secretFiles + "pulumi-cloud"
	// PulumiCloudTokenFile is the name of the file with the token in that directory.
	PulumiCloudTokenFile = "token"
	// accessTokenVariable has an access token for Pulumi Cloud. Pulumi would use it, and refuses to exchange a token as long as it is set.
	accessTokenVariable = "PULUMI_ACCESS_TOKEN"
	// backendVariable has the URL of the backend.
	backendVariable = "PULUMI_BACKEND_URL"
)

// loginName matches the name of an organization, a team or a user. It becomes an argument of a command and a part of the audience, whose
// parts a colon separates.
var loginName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$`)

// Audience is the audience of the token that Pulumi Cloud accepts for the organization; empty when no token is needed.
func (c *PulumiCloud) Audience() string {
	if c == nil {
		return ""
	}
	return "urn:pulumi:org:" + c.OIDC.Organization
}

// Check returns an error for the user unless Pulumi can log in so. The API server checks the same, but not what a template makes of it.
func (o *PulumiCloudOIDC) Check() error {
	if o.Organization == "" {
		return errors.New("organization is required: Pulumi Cloud exchanges a token for one organization")
	}
	if o.Team != "" && o.User != "" {
		return errors.New("set either team or user, not both")
	}
	for _, part := range []struct{ field, name string }{{"organization", o.Organization}, {"team", o.Team}, {"user", o.User}} {
		if part.name != "" && !loginName.MatchString(part.name) {
			return fmt.Errorf("%s must have 1 to 100 letters, digits, dots, underscores and dashes, and begin with a letter or a digit", part.field)
		}
	}
	return nil
}

// CheckPulumiCloud returns an error for the user if the Workspace logs in by OIDC and that cannot work, as far as the Workspace shows it.
// It cannot see the variables of Secrets, ConfigMaps and images.
func (in *Workspace) CheckPulumiCloud() error {
	if in.Spec.PulumiCloud == nil {
		return nil
	}
	if err := in.Spec.PulumiCloud.OIDC.Check(); err != nil {
		return fmt.Errorf("pulumiCloud.oidc: %w", err)
	}
	for _, file := range in.Spec.EnvFiles {
		if file.Name == accessTokenVariable {
			return ErrTwoLogins
		}
	}
	for _, variable := range in.pulumiVariables() {
		switch {
		case variable.Name == accessTokenVariable && (variable.Value != "" || variable.ValueFrom != nil):
			return ErrTwoLogins // an empty variable removes that of the image
		case variable.Name == backendVariable && isSelfManaged(variable.Value):
			return errors.New("pulumiCloud.oidc is a login to Pulumi Cloud, and the backend is another one: use the URL of Pulumi Cloud, " +
				"which begins with https://, or remove pulumiCloud")
		}
	}
	return nil
}

// pulumiVariables returns the environment variables that the Workspace gives the container of Pulumi, without those of envFrom.
func (in *Workspace) pulumiVariables() []corev1.EnvVar {
	variables := slices.Clone(in.Spec.Env)
	if template := in.Spec.PodTemplate; template != nil && template.Spec != nil {
		for i := range template.Spec.Containers {
			if template.Spec.Containers[i].Name == PulumiContainerName {
				variables = append(variables, template.Spec.Containers[i].Env...)
			}
		}
	}
	return variables
}

// isSelfManaged reports whether the URL is certainly that of a backend other than Pulumi Cloud. It may refer to other variables.
func isSelfManaged(url string) bool {
	return url != "" && !strings.Contains(url, "$(") && !strings.HasPrefix(url, "https://") && !strings.HasPrefix(url, "http://")
}

// ErrTwoLogins is the error of a Workspace that logs in by OIDC and has an access token.
var ErrTwoLogins = errors.New("pulumiCloud.oidc and the variable " + accessTokenVariable + " exclude each other: remove the variable, or pulumiCloud")

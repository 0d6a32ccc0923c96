package command

import "github.com/spf13/cobra"

func (s *session) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show the version of this program",
		Args: arguments(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			s.out.Line("flux-pulumi %s", s.Version)
			return nil
		},
	}
}
